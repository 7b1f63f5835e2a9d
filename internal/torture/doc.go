// Package torture puts relays under load and breaks what is around them, at random but by a seed,
// and then checks what came of it: writers whose history is known, relays as processes, proxies
// between them and their servers, faults by a plan, and a checker that compares the history with
// what the broker holds.
//
// The checker is a pure function, Check, of a Record: what was committed, what arrived, what the
// relays noted in their journals, and which faults there were. docs/torture.md says what it counts.
package torture
