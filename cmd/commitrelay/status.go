package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/internal/config"
	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/relay"
)

// unowned is the state of a subscription that no live relay delivers; relays themselves do not
// know it.
const unowned relay.State = "unowned"

func statusCommand() *cobra.Command {
	var asJSON, lanes bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show relays, subscriptions and what waits",
		Long: `Status reads from the database how delivery fares: the relays and their
heartbeats, each subscription with the state that its relays report at /readyz
(of several, the worst), and its lanes with owner, position and lag. Relays that
are configured differently for one subscription, and subscriptions that no live
relay is configured for, are named; so is what keeps space from being given back.`,
		Args: noArguments,
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&lanes, "lanes", false, "show each lane, not only what each relay has")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withDatabase(cmd, src, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
			st, err := store.Open(ctx, pool, cfg.Database.Table, cfg.Database.Schema)
			if err != nil {
				return err
			}
			read, err := st.ReadStatus(ctx)
			if err != nil {
				return fmt.Errorf("read the status: %w\ntry `commitrelay migrate status`: it names rights and tables that are missing", err)
			}
			view := viewStatus(plainName(st.Events()), cfg.Database.Schema, read)
			view.wheelView = viewWheel(st.Holds(ctx, cfg.Database.Retention))
			if asJSON {
				return printJSON(cmd.OutOrStdout(), view)
			}
			return printStatus(cmd.OutOrStdout(), view, lanes)
		})
	}
	return cmd
}

type statusView struct {
	Table         string             `json:"table"`
	Schema        string             `json:"schema"`
	Ready         bool               `json:"ready"` // every subscription makes progress, or is not to
	Relays        []relayView        `json:"relays"`
	Subscriptions []subscriptionView `json:"subscriptions"`
	wheelView
}

// relayView is a relay with the worst state of its subscriptions.
type relayView struct {
	store.RelayStatus
	State relay.State `json:"state"` // empty: it is silent
	Lanes int         `json:"lanes"` // in its hands
}

// subscriptionView is a subscription with the health that the relays owning its lanes report.
type subscriptionView struct {
	Name         string             `json:"name"`
	Sink         string             `json:"sink"`
	Topic        string             `json:"topic"`
	OnDead       string             `json:"on_dead"`
	Filter       filterView         `json:"filter"`
	State        relay.State        `json:"state"`
	Since        time.Time          `json:"since,omitzero"`
	Error        string             `json:"error,omitempty"`
	Topics       map[string]string  `json:"topics,omitempty"`
	LastDelivery time.Time          `json:"last_delivery,omitzero"`
	Pending      int64              `json:"pending"`
	More         bool               `json:"pending_more"`
	Lag          float64            `json:"lag_seconds"`
	Parked       int64              `json:"parked"`
	Dead         int64              `json:"dead"`
	Paused       bool               `json:"paused"`
	LaneCount    int                `json:"lane_count"`
	LanesWanted  int                `json:"lanes_wanted,omitempty"` // the number that is being brought about
	LanesOwned   int                `json:"lanes_owned"`
	Lanes        []store.LaneStatus `json:"lanes"`
	Reports      []reportView       `json:"reports"`     // of live relays that are configured for it
	Differences  []differenceView   `json:"differences"` // between their configurations
}

// reportView is what one relay says of a subscription.
type reportView struct {
	Relay        string            `json:"relay"`
	Host         string            `json:"host"`
	PID          int               `json:"pid"`
	Lanes        []int             `json:"lanes"` // in its hands
	State        relay.State       `json:"state"`
	Since        time.Time         `json:"since,omitzero"`
	Error        string            `json:"error,omitempty"`
	Topics       map[string]string `json:"topics,omitempty"`
	LastDelivery time.Time         `json:"last_delivery,omitzero"`
}

func (r reportView) name() string { return fmt.Sprintf("%s pid %d", r.Host, r.PID) }

type filterView struct {
	AggregateTypes []string `json:"aggregate_type"`
	EventTypes     []string `json:"event_type"`
}

func viewStatus(table, schema string, st store.Status) statusView {
	v := statusView{Table: table, Schema: schema, Ready: len(st.Subscriptions) > 0, Relays: []relayView{}, Subscriptions: []subscriptionView{}}
	for _, r := range st.Relays {
		v.Relays = append(v.Relays, relayView{RelayStatus: r})
	}
	for _, s := range st.Subscriptions {
		sub := viewSubscriptionStatus(s, v.Relays)
		v.Ready = v.Ready && (sub.State == relay.Delivering || sub.State == relay.Standby || sub.State == relay.Paused)
		v.Subscriptions = append(v.Subscriptions, sub)
	}
	return v
}

// viewSubscriptionStatus combines what relays say of a subscription, and notes their lanes.
func viewSubscriptionStatus(s store.SubscriptionStatus, relays []relayView) subscriptionView {
	sub := subscriptionView{
		Name: s.Name, Sink: s.Sink, Topic: s.Topic, OnDead: s.OnDead, Filter: filterView{s.AggregateTypes, s.EventTypes},
		State: unowned, Paused: s.Paused, LaneCount: len(s.Lanes), LanesWanted: s.Wanted, Lanes: s.Lanes,
		Reports: []reportView{}, Differences: differences(s.Name, relays),
	}
	owned := map[string][]int{}
	for _, l := range s.Lanes {
		sub.Pending += l.Pending
		sub.More = sub.More || l.More
		sub.Lag = max(sub.Lag, l.Lag)
		sub.Parked += l.Parked
		sub.Dead += l.Dead
		if l.Owner != "" && l.Lease > 0 {
			owned[l.Owner] = append(owned[l.Owner], l.Lane)
			sub.LanesOwned++
		}
	}
	for i := range relays {
		r := &relays[i]
		r.Lanes += len(owned[r.ID])
		if !r.Alive || !r.Serves(s.Name) {
			continue
		}
		report := reportOf(r.RelayStatus, s.Name)
		report.Lanes = append(report.Lanes, owned[r.ID]...)
		sub.Reports = append(sub.Reports, report)
		r.State = worse(r.State, report.State)
	}
	sub.combine()
	return sub
}

// reportOf is what a relay says of a subscription. One that has not said anything yet is starting.
func reportOf(r store.RelayStatus, subscription string) reportView {
	report := reportView{Relay: r.ID, Host: r.Host, PID: r.PID, Lanes: []int{}, State: relay.Starting}
	var h relay.Health
	if json.Unmarshal(r.Health, &h) != nil {
		return report
	}
	for _, s := range h.Subscriptions {
		if s.Name == subscription {
			report.State, report.Since, report.Error, report.Topics, report.LastDelivery = s.State, s.Since, s.Error, s.Topics, s.LastDelivery
		}
	}
	return report
}

// combine takes the worst state of those that have lanes; while not every lane is in somebody's hands, of all.
func (s *subscriptionView) combine() {
	for _, r := range s.Reports {
		if r.LastDelivery.After(s.LastDelivery) {
			s.LastDelivery = r.LastDelivery
		}
		if len(r.Lanes) == 0 && s.LanesOwned == s.LaneCount {
			continue
		}
		if s.State == unowned || worse(s.State, r.State) != s.State || s.State == r.State && r.Since.Before(s.Since) {
			s.State, s.Since, s.Error = r.State, r.Since, r.Error
		}
		if len(r.Topics) > 0 {
			all := map[string]string{}
			maps.Copy(all, s.Topics)
			maps.Copy(all, r.Topics)
			s.Topics = all
		}
	}
	if s.Paused && s.LanesOwned == 0 {
		s.State, s.Since, s.Error = relay.Paused, time.Time{}, ""
	}
}

// badness orders the states of relays, the best first. What another version calls otherwise is worst.
var badness = []relay.State{
	"", relay.Paused, relay.Standby, relay.Delivering, relay.Starting, relay.SinkDown, relay.DatabaseOut, relay.Stopped,
}

func worse(a, b relay.State) relay.State {
	rank := func(s relay.State) int {
		if i := slices.Index(badness, s); i >= 0 {
			return i
		}
		return len(badness)
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// differenceView is a field of a subscription's configuration that is not the same in all live relays.
type differenceView struct {
	Field  string           `json:"field"`
	Values []differentValue `json:"values"`
}

type differentValue struct {
	Value  string   `json:"value"`
	Relays []string `json:"relays"`
}

// differences between the live relays' configurations of a subscription.
func differences(subscription string, relays []relayView) []differenceView {
	fields := []struct {
		name string
		of   func(c store.Subscription) string
	}{
		{"sink", func(c store.Subscription) string { return c.Sink }},
		{"topic", func(c store.Subscription) string { return c.Topic }},
		{"filter.aggregate_type", func(c store.Subscription) string { return strings.Join(c.AggregateTypes, ", ") }},
		{"filter.event_type", func(c store.Subscription) string { return strings.Join(c.EventTypes, ", ") }},
		{"on_dead", func(c store.Subscription) string { return c.OnDead }},
	}
	found := []differenceView{}
	for _, f := range fields {
		d := differenceView{Field: f.name}
		for _, r := range relays {
			c, known := r.Configurations[subscription]
			if !r.Alive || !known {
				continue
			}
			value := f.of(c)
			i := slices.IndexFunc(d.Values, func(v differentValue) bool { return v.Value == value })
			if i < 0 {
				d.Values = append(d.Values, differentValue{Value: value})
				i = len(d.Values) - 1
			}
			d.Values[i].Relays = append(d.Values[i].Relays, fmt.Sprintf("%s pid %d", r.Host, r.PID))
		}
		if len(d.Values) > 1 {
			found = append(found, d)
		}
	}
	return found
}
