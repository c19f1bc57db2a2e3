# `make test` is what every change has to pass, in three minutes. `make test-long` is the
# rest. CONTRIBUTING.md has the other targets. Modules and tools come by exact version
# through the Go module proxy. Nothing else has to be installed, except for a C compiler
# if the race detector is to run.

GO      ?= go
GOFLAGS ?=
MODULES  = . interop_test bench examples/cluster examples/grpc examples/p2p kcpgo kcpgo/contract observe tunnel tunnel/bench

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.7.0
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0

# Fuzz targets as package:name, and how long each runs in `make fuzz`.
FUZZ     = ./internal/machine:FuzzSegment ./internal/streams:FuzzStreams ./internal/streams:FuzzStreamPairs ./internal/session:FuzzSessions ./e2e:FuzzTLSHandshake .:FuzzTLSContent \
           ./internal/protect:FuzzOpen ./internal/protect:FuzzProtection ./internal/handshake:FuzzExchange ./internal/admission:FuzzJudge \
           ./fuzz:FuzzInput \
           ./crypt:FuzzOpen ./crypt:FuzzSeal ./internal/fec:FuzzDecode ./internal/fec:FuzzRoundTrip \
           ./netsim:FuzzLinkConserves ./qlog:FuzzRead
# The same of the module tunnel.
FUZZ_TUNNEL = .:FuzzSocks .:FuzzSocksPacket .:FuzzHello .:FuzzUsers .:FuzzRules ./kcptun:FuzzCompressed ./cmd/kcptunnel:FuzzFileOfKcptun ./cmd/kcptunnel:FuzzConfigFile
FUZZTIME ?= 10m

PLATFORMS = windows/amd64 darwin/arm64 freebsd/amd64 linux/s390x android/arm64

# Cgo needs a C compiler, and the race detector needs cgo, except on macOS.
# Without a compiler everything else is built without cgo.
CGO  := $(shell set -- $$($(GO) env CC); test "$$($(GO) env CGO_ENABLED)" = 1 && command -v "$$1" >/dev/null && echo 1 || echo 0)
RACE := $(filter 1 darwin,$(CGO) $(shell $(GO) env GOOS))
ifneq ($(CGO),1)
export CGO_ENABLED = 0
endif
NO_RACE = LEFT OUT: the race detector needs cgo and a C compiler (CGO_ENABLED=$(shell $(GO) env CGO_ENABLED), CC=$(shell $(GO) env CC))

# How many seeds `make soak` runs, and how many of them at a time.
SEEDS   ?= 500
WORKERS ?= 12

.PHONY: check test test-long conformance unit quick race offload-off 386 oldest interop interop-full bench-test cluster-test grpc-test p2p-test kcpgo-test kcpgo observe-test observe-rules observe-browser tunnel-test tunnel-programs tunnel-soak tunnel-bench dissector fuzz fuzz-short fuzz-state tls-hostile soak lives schedules cross vet lint bench fmt balancer

# What `make test` does, and what `make test-long` does besides. A stage by itself is in
# full.
STAGES = lint unit tunnel-test race interop kcpgo-test vet
LONG   = $(STAGES) 386 oldest cross offload-off bench-test cluster-test grpc-test p2p-test observe-test schedules soak fuzz-state fuzz-short

# The tests that a change is most likely to break.
check:
	@MAKE="$(MAKE)" SHORT=-short scripts/stages.sh 2 quick vet lint
	@echo "make check: all passed"

quick:
	$(GO) test -short $(TESTFLAGS) . ./e2e ./internal/... ./crypt ./compat ./fuzz

# Two stages at a time, as some of them wait for packets rather than the processor.
# -short makes the repetitions fewer.
test:
	@MAKE="$(MAKE)" SHORT=-short scripts/stages.sh 2 $(STAGES)
	@echo "make test: all passed$(if $(RACE),,, but without the race detector)"

# KCP_LONG asks for the tests that take long.
test-long:
	@MAKE="$(MAKE)" SHORT= KCP_LONG=1 SEEDS=100 FUZZSEEDS=100 scripts/stages.sh 2 $(LONG)
	@echo "make test-long: all passed$(if $(RACE),,, but without the race detector)"

SHORT     ?=
FUZZSHORT ?= 5s

# LIMIT ends the tests of a package if one hangs. Tests have no other limit, so it allows
# for a machine that has ten times more to do than processors. Parallel tests mostly wait,
# so there are more of them than processors. The stage vet does what go test does. What a
# debugger needs takes a third of the time of linking.
LIMIT     = $(if $(SHORT),20m,60m)
TESTFLAGS = -parallel 8 -timeout $(LIMIT) -vet=off -ldflags=-w

# Tests of some packages wait for real time, so three packages run at a time.
unit:
	$(GO) test $(SHORT) -p 3 $(TESTFLAGS) ./...

# Where goroutines meet sockets. In full, all packages.
RACED = $(if $(SHORT),./e2e/sockets ./internal/udp ./internal/wakeup,./...)

race:
ifneq ($(RACE),)
	$(GO) test $(SHORT) $(TESTFLAGS) -race $(RACED)
else
	@echo "race: $(NO_RACE)"
endif

# Without each of what Linux sockets are made fast by; without MMSG there is none
# of the others either. The tests that use none skip themselves.
offload-off:
	@for v in GSO GRO MMSG; do \
		echo "== without $$v"; \
		env KCP_DISABLE_$$v=1 $(GO) test -short $(TESTFLAGS) . ./e2e/sockets ./e2e/network ./internal/udp ./examples/... || exit 1; \
	done

# The packages whose numbers come from the network, where int has 32 bits. Some virtual
# machines run no programs of 32 bits; there they are compiled and vetted.
PACKAGES386 = . ./e2e ./internal/... ./fuzz ./crypt ./compat ./netsim
386:
	@if GOARCH=386 $(GO) test -run '^$$' ./internal/fec >/dev/null 2>&1; then \
		GOARCH=386 $(GO) test -short $(TESTFLAGS) $(PACKAGES386); \
	else \
		echo "386: LEFT OUT except for vet: this system runs no programs of 32 bits"; \
		GOARCH=386 $(GO) vet $(PACKAGES386); \
	fi

# The oldest Go that go.mod names: everything compiles, and the tests that take seconds
# run. The toolchain comes through the module proxy.
OLDEST := GOTOOLCHAIN=go$(shell sed -n 's/^go //p' go.mod)
oldest:
	@for m in . kcpgo observe tunnel; do (cd $$m && $(OLDEST) $(GO) vet ./...) || exit 1; done
	$(OLDEST) $(GO) test -short $(TESTFLAGS) . ./e2e ./internal/... ./crypt ./compat ./netsim ./qlog
	cd tunnel && $(OLDEST) $(GO) test -short $(TESTFLAGS) .

# Recordings of the C reference from new seeds, replayed. KCP_REFERENCE is a checkout of it;
# scripts/conformance/run.sh has the other variables.
conformance:
	GO="$(GO)" scripts/conformance/run.sh

interop:
	cd interop_test && $(GO) test $(SHORT) $(TESTFLAGS) ./...

# The whole cross product of settings; half an hour.
interop-full:
	cd interop_test && KCP_INTEROP=full $(GO) test -timeout 600m ./...

bench-test:
	cd bench && $(GO) test $(SHORT) $(TESTFLAGS) ./...

# promtool, of Debian's package prometheus, checks metrics and rules if it is installed.
observe-test:
	cd observe && $(GO) test $(TESTFLAGS) ./...

# The rules for Prometheus by promtool, which is installed if it is missing: that needs
# root.
observe-rules:
	@command -v promtool >/dev/null || \
		{ apt-get update && apt-get install -y --no-install-recommends prometheus; }
	promtool check rules observe/prometheus/kcp.rules.yml observe/prometheus/kcptunnel.rules.yml
	promtool test rules observe/prometheus/kcp.rules_test.yml observe/prometheus/kcptunnel.rules_test.yml

# Debian's package kcptun is the other end of some tests, if it is installed.
tunnel-test:
	cd tunnel && $(GO) test $(SHORT) $(TESTFLAGS) ./...

# Programs of others through the tunnel: Debian's packages iperf3, openssh-server, curl,
# bind9-dnsutils and dnsmasq-base; half a minute.
tunnel-programs:
	cd tunnel && KCP_PROGRAMS=1 $(GO) test -count=1 -v -timeout 60m -run TestPrograms ./cmd/kcptunnel

# Random connections while the server is killed and restarted, for SOAKTIME.
SOAKTIME ?= 10m
tunnel-soak:
	cd tunnel && KCP_SOAK=$(SOAKTIME) $(GO) test -count=1 -v -timeout 120m -run TestSoak ./cmd/kcptunnel

# Tunnels over one bad link; as root, for network namespaces; half an hour.
tunnel-bench:
	cd tunnel/bench && $(GO) run . -out results/tunnel.txt

# The pages in a browser: Debian's package chromium; a minute.
observe-browser:
	cd observe/browser && $(GO) vet ./... && $(GO) test -count=1 -timeout 60m -v ./...

# The dissector of Wireshark: Debian's package tshark.
dissector:
	$(GO) test -count=1 -v ./wireshark

# The other examples are part of the root module.
cluster-test:
	cd examples/cluster && $(GO) test $(TESTFLAGS) ./...

grpc-test:
	cd examples/grpc && $(GO) test $(TESTFLAGS) ./...

# As root on Linux also between network namespaces, behind two routers.
p2p-test:
	cd examples/p2p && $(GO) test $(TESTFLAGS) ./...

# The API of kcp-go: the same tests of behaviour with ours in its place, and in full with
# kcp-go.
kcpgo-test:
	cd kcpgo && $(GO) test $(SHORT) $(TESTFLAGS) ./...
	cd kcpgo/contract && $(GO) test $(SHORT) $(TESTFLAGS) -tags kcpgo -modfile=replaced.mod .
	$(if $(SHORT),,cd kcpgo/contract && $(GO) test $(TESTFLAGS) ./...)

# Programs that use kcp-go, built with it and with ours in its place, in all pairs.
# They come through the module proxy; building takes some minutes the first time.
kcpgo:
	cd kcpgo/contract && KCP_PROGRAMS=1 $(GO) test -count=1 -v -timeout 60m ./programs

# Random lives of sessions, streams and groups in virtual time; some minutes.
lives:
	KCP_LIVES=2000 $(GO) test -count=1 -timeout 60m -run TestRandomLives ./e2e/schedules

# Every schedule of TestSchedules, and of takeovers; some ten minutes.
schedules:
	KCP_LONG=1 $(GO) test ./e2e/schedules -count=1 -v -parallel 8 -timeout 120m

fuzz:
	@for f in $(FUZZ); do \
		echo "== $$f for $(FUZZTIME)"; \
		$(GO) test -run '^$$' -fuzz "^$${f#*:}$$" -fuzzminimizetime 100x -fuzztime $(FUZZTIME) $${f%%:*} || exit 1; \
	done
	@cd tunnel && for f in $(FUZZ_TUNNEL); do \
		echo "== tunnel/$$f for $(FUZZTIME)"; \
		$(GO) test -run '^$$' -fuzz "^$${f#*:}$$" -fuzzminimizetime 100x -fuzztime $(FUZZTIME) $${f%%:*} || exit 1; \
	done

fuzz-short:
	@$(MAKE) --no-print-directory fuzz FUZZTIME=$(FUZZSHORT)

# Attackers on the path of sessions with TLS, for a thousand seeds; some minutes.
tls-hostile:
	KCP_TLS_SEEDS=1000 $(GO) test -run '^TestTLSHostile' -timeout 60m .

# Sessions attacked by somebody who knows their state and keys; half an hour.
FUZZSEEDS ?= 4000
fuzz-state:
	KCP_FUZZ_SEEDS=$(FUZZSEEDS) $(GO) test -run '^TestHostile' -timeout 60m ./fuzz
	GOARCH=386 KCP_FUZZ_SEEDS=$$(($(FUZZSEEDS) / 5)) $(GO) test -run '^TestHostile' -timeout 60m ./fuzz
ifneq ($(RACE),)
	KCP_FUZZ_SEEDS=60 $(GO) test -race -run '^TestHostile' -timeout 60m ./fuzz
else
	@echo "fuzz-state under the race detector: $(NO_RACE)"
endif

# Random applications over real sockets, with a server that may be killed; some seven
# minutes. `make test` has a handful of seeds.
soak:
	$(GO) test ./soak -v -timeout 60m -first 1 -seeds $(SEEDS) -workers $(WORKERS)

# vet compiles what is imported, and type-checks the tests and programs too.
cross:
	@for p in $(PLATFORMS); do \
		echo "== $$p"; \
		GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) vet ./... || exit 1; \
	done

VETTED = $(if $(SHORT),. kcpgo observe tunnel,$(MODULES))
vet:
	@for m in $(VETTED); do (cd $$m && $(GO) vet ./...) || exit 1; done

# The analysis of tests, and of what the other modules depend on, takes minutes.
# Without tests it does not know what they alone use (U1000).
lint:
	@out=$$(gofmt -l .); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	@for m in $(if $(SHORT),. kcpgo,$(MODULES)); do \
		(cd $$m && $(GO) run $(STATICCHECK) $(if $(SHORT),-tests=false -checks inherit$(COMMA)-U1000) ./...) || exit 1; \
	done
COMMA = ,

fmt:
	gofmt -w .

# Sessions through nginx, by conversation id; a minute and a quarter. Debian's packages are
# installed if they are missing, which needs root.
BALANCER_PACKAGES = nginx-core libnginx-mod-stream libnginx-mod-stream-js

balancer:
	@dpkg -s $(BALANCER_PACKAGES) >/dev/null 2>&1 || \
		{ apt-get update && apt-get install -y --no-install-recommends $(BALANCER_PACKAGES); }
	KCP_BALANCER=1 $(GO) test -count=1 -v -parallel 4 -timeout 60m ./examples/balancer

# Everything is measured, and bench/results gets a table; 25 minutes.
bench:
	cd bench && $(GO) run . -out results

.PHONY: release release-test vulncheck

MODULES += scripts/modproxy

# HEAD as a version that others depend on, from a module proxy of files; a minute.
RELEASE ?= v0.1.0
release-test:
	./scripts/release-test.sh $(RELEASE)

# The Go that builds the release: the newest patch, while go.mod names the oldest that
# works. It comes through the module proxy. `make vulncheck` says when it has to be newer.
RELEASE_GO = go1.26.11

# Vulnerabilities of Go and of modules that our code reaches, if RELEASE_GO builds it. The
# database comes from vuln.go.dev, or from VULNDB, an address like file:///folder.
VULNDB ?=
RELEASED = . kcpgo observe tunnel
vulncheck:
	@for m in $(RELEASED); do \
		echo "== $$m"; \
		(cd $$m && GOTOOLCHAIN=$(RELEASE_GO) $(GO) run $(GOVULNCHECK) $(if $(VULNDB),-db $(VULNDB)) ./...) || exit 1; \
	done

# Static programs in dist, with checksums. `kcp version` prints the version of the
# tag, which the go command takes from git, and which commit it is.
TARGETS = linux/amd64 linux/arm64 darwin/arm64 darwin/amd64 windows/amd64 freebsd/amd64
release:
	@test -d .git || { echo "release: not in a clone: the go command finds no version in a worktree"; exit 1; }
	rm -rf dist && mkdir dist
	@for t in $(TARGETS); do \
		os=$${t%/*} arch=$${t#*/}; exe=$$(test $$os != windows || echo .exe); \
		echo "== $$t"; \
		GOTOOLCHAIN=$(RELEASE_GO) GOOS=$$os GOARCH=$$arch CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=true -ldflags '-s -w' \
			-o dist/kcp-$$os-$$arch$$exe ./cmd/kcp || exit 1; \
		(cd tunnel && GOTOOLCHAIN=$(RELEASE_GO) GOOS=$$os GOARCH=$$arch CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=true -ldflags '-s -w' \
			-o ../dist/kcptunnel-$$os-$$arch$$exe ./cmd/kcptunnel) || exit 1; \
	done
	cd dist && { if command -v sha256sum >/dev/null; then sha256sum kcp*; else shasum -a 256 kcp*; fi; } >SHA256SUMS
	@cat dist/SHA256SUMS
