package tunnel

import (
	"log/slog"
	"time"
)

// cause returns the attribute of an error for a record of the log: none if there is no
// error.
func cause(err error) slog.Attr {
	if err == nil {
		return slog.Attr{} // handlers leave it out
	}
	return slog.Any("error", err)
}

// text returns an attribute for a record of the log: none if its value is empty.
func text(key, value string) slog.Attr {
	if value == "" {
		return slog.Attr{}
	}
	return slog.String(key, value)
}

// since returns the attribute of how long something has lasted.
func since(began time.Time) slog.Attr {
	return slog.Duration("lasted", time.Since(began).Round(time.Millisecond))
}
