package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/relay"
)

func printStatus(w io.Writer, v statusView, eachLane bool) error {
	fmt.Fprintf(w, "events table %s, all else in schema %s\n\n", v.Table, v.Schema)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printRelays(t, v.Relays)
	fmt.Fprintln(t, "\nSUBSCRIPTION\tSINK\tSTATE\tPENDING\tLAG\tPARKED\tDEAD\tLANES\tRELAYS")
	for _, s := range v.Subscriptions {
		lanes := fmt.Sprint(s.LaneCount)
		if s.LanesOwned < s.LaneCount {
			lanes = fmt.Sprintf("%d of %d", s.LanesOwned, s.LaneCount)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\n", s.Name, s.Sink, s.State, count(s.Pending, s.More), seconds(s.Lag), s.Parked, s.Dead, lanes, len(s.Reports))
	}
	if len(v.Subscriptions) == 0 {
		fmt.Fprintln(t, "none: a relay makes them known when it first runs")
	}
	if eachLane {
		printLanes(t, v)
	} else {
		printOwners(t, v)
	}
	printSlots(t, v.wheelView)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range v.Subscriptions {
		printNotes(w, s)
	}
	printHolds(w, v.wheelView)
	return nil
}

func printRelays(t io.Writer, relays []relayView) {
	fmt.Fprintln(t, "RELAY\tHOST\tPID\tVERSION\tHEARTBEAT\tLANES\tSTATE")
	for _, r := range relays {
		state := string(r.State)
		if !r.Alive {
			state = "silent"
		}
		fmt.Fprintf(t, "%.8s\t%s\t%d\t%s\t%s ago\t%d\t%s\n", r.ID, r.Host, r.PID, r.Version, seconds(r.HeartbeatAge), r.Lanes, state)
	}
	if len(relays) == 0 {
		fmt.Fprintln(t, "none")
	}
}

// printOwners shows the lanes of a subscription by who has them.
func printOwners(t io.Writer, v statusView) {
	fmt.Fprintln(t, "\nLANES OF\tOWNER\tLANES\tPENDING\tLAG\tPARKED\tDEAD\tSTATE")
	for _, s := range v.Subscriptions {
		byOwner := map[string][]store.LaneStatus{}
		for _, l := range s.Lanes {
			byOwner[owner(l)] = append(byOwner[owner(l)], l)
		}
		for _, name := range slices.SortedFunc(maps.Keys(byOwner), func(a, b string) int { return byOwner[a][0].Lane - byOwner[b][0].Lane }) {
			var sum store.LaneStatus
			var numbers []int
			for _, l := range byOwner[name] {
				numbers = append(numbers, l.Lane)
				sum.Pending += l.Pending
				sum.More = sum.More || l.More
				sum.Lag = max(sum.Lag, l.Lag)
				sum.Parked += l.Parked
				sum.Dead += l.Dead
			}
			state := "-"
			for _, r := range s.Reports {
				if r.Relay[:min(8, len(r.Relay))] == name {
					state = string(r.State)
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", s.Name, name, store.Ranges(numbers), count(sum.Pending, sum.More), seconds(sum.Lag), sum.Parked, sum.Dead, state)
		}
	}
}

func printLanes(t io.Writer, v statusView) {
	fmt.Fprintln(t, "\nLANE\tOWNER\tEPOCH\tPOSITION\tWINDOW END\tPENDING\tLAG\tPARKED\tDEAD")
	for _, s := range v.Subscriptions {
		for _, l := range s.Lanes {
			fmt.Fprintf(t, "%s/%d\t%s\t%d\t%d\t%d\t%s\t%s\t%d\t%d\n",
				s.Name, l.Lane, owner(l), l.Epoch, l.Position, l.Window, count(l.Pending, l.More), seconds(l.Lag), l.Parked, l.Dead)
		}
	}
}

// owner is the beginning of the id of the relay that has a lane.
func owner(l store.LaneStatus) string {
	if l.Owner == "" || l.Lease <= 0 {
		return "none"
	}
	return l.Owner[:min(8, len(l.Owner))]
}

// printNotes says what someone should know of a subscription, in sentences.
func printNotes(w io.Writer, s subscriptionView) {
	note := func(format string, args ...any) {
		fmt.Fprintf(w, "\n%s: "+format+"\n", append([]any{s.Name}, args...)...)
	}
	for _, r := range s.Reports {
		if r.Error != "" {
			note("%s since %s on %s: %s", r.State, r.Since.Format(time.RFC3339), r.name(), r.Error)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(s.Topics)) {
		note("topic %q does not take events: %s", topic, s.Topics[topic])
	}
	for _, d := range s.Differences {
		var parts []string
		for _, v := range d.Values {
			parts = append(parts, fmt.Sprintf("%q on %s", v.Value, strings.Join(v.Relays, ", ")))
		}
		note("its relays are configured differently, and which events go where depends on who has their lane: %s is %s", d.Field, strings.Join(parts, "; "))
	}
	if s.LanesWanted != 0 {
		note("it is to have %d lanes; `commitrelay subscriptions lanes %s %d` says what that waits for", s.LanesWanted, s.Name, s.LanesWanted)
	}
	if s.Paused && s.State != relay.Paused {
		note("it is paused: relays are about to give its lanes back")
	}
	if len(s.Reports) == 0 {
		note("no live relay is configured for it, its events wait and hold their space: start one, or `commitrelay subscriptions drop %s`", s.Name)
	}
}

func count(n int64, more bool) string {
	if more {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d > time.Minute {
		return d.Round(time.Second).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
