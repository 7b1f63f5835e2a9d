//go:build unix && !race

package torture

// raceFlags build relays: these tests do without the race detector.
var raceFlags []string
