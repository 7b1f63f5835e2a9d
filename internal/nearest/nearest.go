// Package nearest finds the name that someone meant who has written another.
package nearest

import "strings"

// Name is the candidate most like s, or "" if none is near enough to be meant.
func Name(s string, candidates []string) string {
	best, bestD := "", 1+max(2, len(s)/3)
	for _, c := range candidates {
		d := Distance(s, c)
		if len(s) > 2 && len(c) > 2 && (strings.HasPrefix(s, c) || strings.HasPrefix(c, s)) {
			d = min(d, 2) // "batchsize" means batch
		}
		if d < bestD {
			best, bestD = c, d
		}
	}
	return best
}

// Distance counts the insertions, deletions, substitutions and swaps of neighbours between a and b, in bytes.
func Distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b) // nothing we know is that long
	}
	var before, prev, row [65]int
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}
