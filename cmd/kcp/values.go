package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/stats"
)

// sizeUnits are the units of parseSize, in lower case and without the final b.
var sizeUnits = map[string]float64{
	"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12,
	"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}

// parseSize parses a number of bytes, such as 8MB, 1.5GiB, 64k or 1000.
func parseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit := strings.ToLower(strings.TrimSpace(s[len(digits):]))
	factor, known := sizeUnits[strings.TrimSuffix(unit, "b")]
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || !known {
		return 0, errors.New("want a size such as 8MB, 512kB or 4MiB")
	}
	n *= factor
	if n < 0 || n >= math.MaxInt64 || n != math.Trunc(n) {
		return 0, errors.New("want a whole number of bytes, not negative and below 8EiB")
	}
	return int64(n), nil
}

// parseBuffer parses the size of a buffer.
func parseBuffer(s string) (int, error) {
	n, err := parseSize(s)
	if err == nil && (n == 0 || n > math.MaxInt32) {
		err = errors.New("want 4096 bytes to 1GB")
	}
	return int(n), err
}

// parsePercent parses a share. 10%, 10 and 0.1 are the same: without a percent
// sign a number below 1 is a fraction. So 1 needs one: beside 0.9 it would be all.
func parsePercent(s string) (float64, error) {
	number, sign := strings.CutSuffix(s, "%")
	p, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(p) {
		return 0, errors.New("want a share such as 10%, 10 or 0.1")
	}
	if p == 1 && !sign {
		return 0, errors.New("want 1% or 100%, as 1 may mean either")
	}
	if sign || p >= 1 {
		p /= 100
	}
	if p < 0 || p > 1 {
		return 0, errors.New("want a share from 0% to 100%")
	}
	return p, nil
}

// parseDuration parses a duration that is not negative.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, errors.New("want a duration with its unit, such as 30ms, 2s or 5m")
	case d < 0:
		return 0, errors.New("must not be negative")
	}
	return d, nil
}

// positiveDuration parses a duration that is not 0 either.
func positiveDuration(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err == nil && d == 0 {
		err = errors.New("must not be 0")
	}
	return d, err
}

// parsePatience parses a duration; -1 means forever. As in other netcats, a number
// without a unit is in seconds.
func parsePatience(s string) (time.Duration, error) {
	var d time.Duration
	n, err := strconv.ParseFloat(s, 64)
	if err == nil && math.Abs(n) < 1e9 {
		d = time.Duration(n * float64(time.Second))
	} else {
		d, err = time.ParseDuration(s)
	}
	if err != nil || d < 0 && d != -time.Second {
		return 0, errors.New("want a duration such as 3s, or -1 to wait forever")
	}
	return d, nil
}

// parseSwitch parses the value of a switch.
func parseSwitch(s string) (bool, error) {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return on, nil
}

// parseSeed parses a seed.
func parseSeed(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, errors.New("want a whole number, not negative")
	}
	return n, nil
}

// within returns a parser of an integer from least to most. 0, which would mean
// the default in a kcp.Config, is not a valid one.
func within(least, most int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		return n, nil
	}
}

// orOff returns a parser that turns an explicit 0 into -1: in a kcp.Config 0 means
// the default, and a negative value off.
func orOff[T int | time.Duration](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (T, error) {
		v, err := parse(s)
		if v == 0 {
			v = -1
		}
		return v, err
	}
}

// parseFEC parses a ratio such as 10/3.
func parseFEC(s string) (kcp.FEC, error) {
	data, parity, _ := strings.Cut(s, "/")
	d, err := strconv.Atoi(data)
	p, also := strconv.Atoi(parity)
	if errors.Join(err, also) != nil {
		return kcp.FEC{}, errors.New("want data and parity packets of a group, such as 10/3")
	}
	return kcp.FEC{Data: d, Parity: p}, nil
}

// choice is one of the values of a flag.
type choice[T any] struct {
	name  string
	value T
}

// choices are all of them.
type choices[T any] []choice[T]

// names returns what one types.
func (c choices[T]) names() (names []string) {
	for _, one := range c {
		names = append(names, one.name)
	}
	return names
}

// parse returns the value of a name.
func (c choices[T]) parse(s string) (v T, err error) {
	for _, one := range c {
		if one.name == strings.ToLower(s) {
			return one.value, nil
		}
	}
	names, last := c.names(), len(c)-1
	return v, fmt.Errorf("want %s or %s", strings.Join(names[:last], ", "), names[last])
}

// formatBytes formats a number of bytes for people.
func formatBytes(n float64) string {
	for _, u := range []struct {
		factor float64
		name   string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.factor {
			return fmt.Sprintf("%.1f %s", n/u.factor, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}

// plural returns "1 byte", "2 bytes".
func plural[N int64 | uint64](n N, name string) string {
	if n == 1 {
		return "1 " + name
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// formatShare formats part of whole as a percentage.
func formatShare(part, whole float64) string {
	if whole <= 0 {
		return "0.0%"
	}
	return fmt.Sprintf("%.1f%%", 100*part/whole)
}

// formatTime formats a measured time for people.
func formatTime(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.2fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// resentShare returns the share of retransmissions in all transmissions.
func resentShare(s *stats.Conn) string {
	again := float64(s.Retransmits())
	return formatShare(again, float64(s.SegmentsSent)+again)
}
