package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
)

// logger returns the logger to p that the flags ask for.
func (p *patientWriter) logger(format string, verbose bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: asText}
	if verbose {
		options.Level = slog.LevelDebug
	}
	logger := func(w io.Writer) *slog.Logger {
		if format == "json" {
			return slog.New(slog.NewJSONHandler(w, options))
		}
		return slog.New(slog.NewTextHandler(w, options))
	}
	p.leftOut = func(n int) []byte {
		var b bytes.Buffer
		logger(&b).Warn("the log was not read, and these records are left out", "records", n)
		return b.Bytes()
	}
	return logger(p)
}

// asText makes text of values that say how, such as addresses, and of durations, in JSON
// too. It leaves out an error that is nil.
func asText(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case a.Key == "error" && a.Value.Kind() == slog.KindAny && a.Value.Any() == nil:
		return slog.Attr{}
	}
	if s, ok := a.Value.Any().(fmt.Stringer); ok && a.Value.Kind() == slog.KindAny {
		a.Value = slog.StringValue(s.String())
	}
	return a
}

// bytesText returns a number of bytes in units of 1000.
func bytesText(n float64) string {
	for _, unit := range []string{"B", "KB", "MB"} {
		if n < 999.5 {
			return fmt.Sprintf("%.3g %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3g GB", n)
}
