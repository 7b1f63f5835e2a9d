package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show relays, subscriptions and what waits",
		Long: `Status reads from the database how delivery fares: the relays and their
heartbeats, each subscription with the state that its relay reports at /readyz,
and its lanes with owner, position and lag.`,
		Args: noArguments,
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
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
			if asJSON {
				return printJSON(cmd.OutOrStdout(), view)
			}
			return printStatus(cmd.OutOrStdout(), view)
		})
	}
	return cmd
}

type statusView struct {
	Table         string              `json:"table"`
	Schema        string              `json:"schema"`
	Ready         bool                `json:"ready"` // every subscription makes progress
	Relays        []store.RelayStatus `json:"relays"`
	Subscriptions []subscriptionView  `json:"subscriptions"`
}

// subscriptionView is a subscription with the health that the relay owning its lanes reports.
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
	Lanes        []store.LaneStatus `json:"lanes"`
}

type filterView struct {
	AggregateTypes []string `json:"aggregate_type"`
	EventTypes     []string `json:"event_type"`
}

func viewStatus(table, schema string, st store.Status) statusView {
	v := statusView{Table: table, Schema: schema, Ready: len(st.Subscriptions) > 0, Relays: st.Relays, Subscriptions: []subscriptionView{}}
	if v.Relays == nil {
		v.Relays = []store.RelayStatus{}
	}
	for _, s := range st.Subscriptions {
		sub := subscriptionView{
			Name: s.Name, Sink: s.Sink, Topic: s.Topic, OnDead: s.OnDead,
			Filter: filterView{s.AggregateTypes, s.EventTypes}, State: unowned, Lanes: s.Lanes,
		}
		for _, l := range s.Lanes {
			sub.Pending += l.Pending
			sub.More = sub.More || l.More
			sub.Lag = max(sub.Lag, l.Lag)
			sub.Parked += l.Parked
			sub.Dead += l.Dead
		}
		if h, ok := reported(s, st.Relays); ok {
			sub.State, sub.Since, sub.Error, sub.Topics, sub.LastDelivery = h.State, h.Since, h.Error, h.Topics, h.LastDelivery
		}
		v.Ready = v.Ready && (sub.State == relay.Delivering || sub.State == relay.Standby)
		v.Subscriptions = append(v.Subscriptions, sub)
	}
	return v
}

// reported is the health of a subscription as the live owner of its first lane tells it; before a
// lane is owned, as any live relay that is configured for it does.
func reported(s store.SubscriptionStatus, relays []store.RelayStatus) (relay.SubscriptionHealth, bool) {
	owner := ""
	for _, l := range s.Lanes {
		if l.Lease > 0 {
			owner = l.Owner
			break
		}
	}
	for _, r := range relays {
		if !r.Alive || (owner != "" && r.ID != owner) || !slices.Contains(r.Subscriptions, s.Name) {
			continue
		}
		var h relay.Health
		if json.Unmarshal(r.Health, &h) != nil {
			continue
		}
		for _, sub := range h.Subscriptions {
			if sub.Name == s.Name {
				return sub, true
			}
		}
	}
	return relay.SubscriptionHealth{}, false
}

func printStatus(w io.Writer, v statusView) error {
	fmt.Fprintf(w, "events table %s, all else in schema %s\n\n", v.Table, v.Schema)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RELAY\tHOST\tPID\tVERSION\tHEARTBEAT\tSTATE")
	for _, r := range v.Relays {
		state := "alive"
		if !r.Alive {
			state = "silent"
		}
		fmt.Fprintf(t, "%.8s\t%s\t%d\t%s\t%s ago\t%s\n", r.ID, r.Host, r.PID, r.Version, seconds(r.HeartbeatAge), state)
	}
	if len(v.Relays) == 0 {
		fmt.Fprintln(t, "none")
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "SUBSCRIPTION\tSINK\tSTATE\tPENDING\tLAG\tPARKED\tDEAD")
	for _, s := range v.Subscriptions {
		more := ""
		if s.More {
			more = "+"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d%s\t%s\t%d\t%d\n", s.Name, s.Sink, s.State, s.Pending, more, seconds(s.Lag), s.Parked, s.Dead)
	}
	if len(v.Subscriptions) == 0 {
		fmt.Fprintln(t, "none: a relay makes them known when it first runs")
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "LANE\tOWNER\tEPOCH\tPOSITION\tWINDOW END\tPENDING")
	for _, s := range v.Subscriptions {
		for _, l := range s.Lanes {
			owner := "none"
			if l.Owner != "" && l.Lease > 0 {
				owner = l.Owner[:min(8, len(l.Owner))]
			}
			fmt.Fprintf(t, "%s/%d\t%s\t%d\t%d\t%d\t%d\n", s.Name, l.Lane, owner, l.Epoch, l.Position, l.Window, l.Pending)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range v.Subscriptions {
		if s.Error != "" {
			fmt.Fprintf(w, "\n%s: %s since %s: %s\n", s.Name, s.State, s.Since.Format(time.RFC3339), s.Error)
		}
		for topic, msg := range s.Topics {
			fmt.Fprintf(w, "\n%s: topic %q does not take events: %s\n", s.Name, topic, msg)
		}
	}
	return nil
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d > time.Minute {
		return d.Round(time.Second).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
