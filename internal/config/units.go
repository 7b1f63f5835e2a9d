package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// parseDuration reads a Go duration that is not negative.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		if _, err := strconv.ParseFloat(s, 64); err == nil {
			return 0, errors.New("a duration needs a unit, as 500ms, 10s or 1m30s")
		}
		return 0, errors.New("not a duration: write it as 500ms, 10s or 1m30s")
	case d < 0:
		return 0, errors.New("a duration cannot be negative")
	}
	return d, nil
}

// sizeUnits, longest first, so that "MiB" is not taken for "B".
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"B", 1},
}

// parseSize reads a number of bytes with its unit.
func parseSize(s string) (int, error) {
	for _, u := range sizeUnits {
		n, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
		if err != nil || math.IsNaN(f) || f <= 0 || f*u.bytes > math.MaxInt32 {
			return 0, errors.New("not a size between 1B and 2GiB: write it as 512KiB or 4MiB")
		}
		return int(f * u.bytes), nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, errors.New("a size needs a unit, as 65536B, 512KiB or 4MiB")
	}
	return 0, errors.New("not a size: write it as 512KiB or 4MiB")
}
