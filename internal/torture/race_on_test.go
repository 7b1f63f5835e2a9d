//go:build unix && race

package torture

// raceFlags build relays that look for data races: one that finds some ends with a failure.
var raceFlags = []string{"-race"}
