package kcp

// secured returns config with TLS, for both ends.
func secured(config Config) *Config {
	config.TLS = testTLS()
	return &config
}
