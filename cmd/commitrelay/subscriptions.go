package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/admin"
	"github.com/commitrelay/outbox/internal/config"
)

func subscriptionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "subscriptions",
		Short: "List, pause, resume and drop subscriptions, and change their lanes",
		Args:  suggestCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subscriptionsList(), subscriptionsLanes(), subscriptionsPause(), subscriptionsResume(), subscriptionsDrop())
	return cmd
}

// exactArguments demands one argument for each name.
func exactArguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usagef("%s takes %s, got %d arguments\nrun `%s --help` for its flags", cmd.CommandPath(), strings.Join(names, " and "), len(args), cmd.CommandPath())
		}
		return nil
	}
}

// withAdmin runs fn on the outbox that the configuration names.
func withAdmin(cmd *cobra.Command, src *source, fn func(ctx context.Context, a *admin.Admin) error) error {
	return withDatabase(cmd, src, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
		a, err := admin.Open(ctx, pool, admin.Options{Table: cfg.Database.Table.String(), Schema: cfg.Database.Schema})
		if err != nil {
			return err
		}
		return fn(ctx, a)
	})
}

func subscriptionsList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what is stored of each subscription, and how many relays have it",
		Long: `List shows every subscription that was ever configured and not dropped. How each
fares, and what waits in it, is what status shows.`,
		Args: noArguments,
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withAdmin(cmd, src, func(ctx context.Context, a *admin.Admin) error {
			subs, err := a.Subscriptions(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				views := []subscriptionInfo{}
				for _, s := range subs {
					views = append(views, viewSubscription(s))
				}
				return printJSON(cmd.OutOrStdout(), views)
			}
			return printSubscriptions(cmd.OutOrStdout(), subs)
		})
	}
	return cmd
}

// subscriptionInfo is admin.Subscription for machines.
type subscriptionInfo struct {
	Name        string      `json:"name"`
	Sink        string      `json:"sink"`
	Topic       string      `json:"topic"`
	OnDead      string      `json:"on_dead"`
	Filter      filterView  `json:"filter"`
	Lanes       int         `json:"lanes"`
	LanesWanted int         `json:"lanes_wanted"`
	Paused      bool        `json:"paused"`
	CreatedAt   time.Time   `json:"created_at"`
	Parked      int64       `json:"parked"`
	Dead        int64       `json:"dead"`
	Relays      []relayInfo `json:"relays"`
}

type relayInfo struct {
	ID    string `json:"id"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Lanes []int  `json:"lanes"`
}

func viewSubscription(s admin.Subscription) subscriptionInfo {
	v := subscriptionInfo{
		Name: s.Name, Sink: s.Sink, Topic: s.Topic, OnDead: s.OnDead, Filter: filterView{s.AggregateTypes, s.EventTypes},
		Lanes: s.Lanes, LanesWanted: s.LanesWanted, Paused: s.Paused, CreatedAt: s.CreatedAt, Parked: s.Parked, Dead: s.Dead, Relays: []relayInfo{},
	}
	for _, r := range s.Relays {
		v.Relays = append(v.Relays, relayInfo{r.ID, r.Host, r.PID, append([]int{}, r.Lanes...)})
	}
	return v
}

func printSubscriptions(w io.Writer, subs []admin.Subscription) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSINK\tTOPIC\tRELAYS\tLANES\tPARKED\tDEAD\tSTATE")
	for _, s := range subs {
		var state []string
		if s.Paused {
			state = append(state, "paused")
		}
		if s.LanesWanted != s.Lanes {
			state = append(state, fmt.Sprintf("to have %d lanes", s.LanesWanted))
		}
		if len(s.Relays) == 0 {
			state = append(state, "no live relay")
		}
		if len(state) == 0 {
			state = append(state, "active")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\n", s.Name, s.Sink, s.Topic, len(s.Relays), s.Lanes, s.Parked, s.Dead, strings.Join(state, ", "))
	}
	if len(subs) == 0 {
		fmt.Fprintln(t, "none: a relay makes them known when it first runs")
	}
	return t.Flush()
}

// waiter tells on standard error what a command waits for, no more often than anyone reads.
type waiter struct {
	timeout time.Duration
	last    time.Time
}

const tellEvery = time.Second

func (w *waiter) bind(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.timeout, "timeout", time.Minute, "`duration` to wait until it is done; 0: only ask for it")
}

// wait runs await until it is done or the time is over; asked says what stands then.
func (w *waiter) wait(ctx context.Context, cmd *cobra.Command, asked string, await func(ctx context.Context, progress func(string)) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	err := await(ctx, func(waiting string) {
		if time.Since(w.last) >= tellEvery {
			w.last = time.Now()
			fmt.Fprintln(cmd.ErrOrStderr(), "waiting:", waiting)
		}
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w\n%s", err, asked)
	}
	return err
}

func subscriptionsLanes() *cobra.Command {
	var asJSON bool
	var w waiter
	cmd := &cobra.Command{
		Use:   "lanes NAME NUMBER",
		Short: "Change the number of lanes",
		Long: `Lanes changes the number of parts that relays share: a power of two from 1 to 1024.
One relay takes all lanes and brings them to one place, while events go on being
delivered; there the number changes, and the relays share the new lanes out. With
a backlog that takes until that relay has delivered it. Nothing is lost, repeated
or overtaken, and parked events move with their keys.

It waits until that is done, and says what it waits for. A request that is not
done in time stands: relays go on with it. The present number takes it back.`,
		Example: "  commitrelay subscriptions lanes all 64",
		Args:    exactArguments("NAME", "NUMBER"),
	}
	src := bind(cmd, "database.")
	w.bind(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return usagef("%q is no number of lanes: %v", args[1], admin.ErrBadLanes)
		}
		return withAdmin(cmd, src, func(ctx context.Context, a *admin.Admin) error {
			err := a.SetLanes(ctx, name, n)
			if errors.Is(err, admin.ErrBadLanes) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			const asked = "the request stands: relays go on with it; the present number takes it back"
			done := w.timeout > 0
			if done {
				err := w.wait(ctx, cmd, asked, func(ctx context.Context, progress func(string)) error {
					return a.AwaitLanes(ctx, name, n, progress)
				})
				if err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"name": name, "lanes": n, "done": done})
			}
			if !done {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is to have %d lanes: %s\n", name, n, asked)
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s has %d lanes\n", name, n)
			return err
		})
	}
	return cmd
}

func subscriptionsPause() *cobra.Command {
	var asJSON bool
	var w waiter
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Stop delivering a subscription until it is resumed",
		Long: `Pause has every relay finish what it is sending and give the lanes back, and waits
until nobody has one: from then on nothing of the subscription is published, by
no relay, until it is resumed. Its events wait in the outbox, and hold its space.`,
		Args: exactArguments("NAME"),
	}
	src := bind(cmd, "database.")
	w.bind(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		return withAdmin(cmd, src, func(ctx context.Context, a *admin.Admin) error {
			changed, err := a.Pause(ctx, name)
			if err != nil {
				return err
			}
			done := w.timeout > 0
			if done {
				err := w.wait(ctx, cmd, "the request stands: relays give the lanes back as soon as what they are sending is settled", func(ctx context.Context, progress func(string)) error {
					return a.AwaitPaused(ctx, name, progress)
				})
				if err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"name": name, "paused": true, "changed": changed, "done": done})
			}
			what := name + " is paused"
			switch {
			case !changed:
				what = name + " was paused already"
			case !done:
				what += ": relays give its lanes back"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), what)
			return err
		})
	}
	return cmd
}

func subscriptionsResume() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Let a paused subscription go on where it stopped",
		Args:  exactArguments("NAME"),
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		return withAdmin(cmd, src, func(ctx context.Context, a *admin.Admin) error {
			changed, err := a.Resume(ctx, name)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"name": name, "paused": false, "changed": changed})
			}
			what := name + " goes on"
			if !changed {
				what = name + " was not paused"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), what)
			return err
		})
	}
	return cmd
}

func subscriptionsDrop() *cobra.Command {
	var asJSON, yes, force bool
	cmd := &cobra.Command{
		Use:   "drop NAME",
		Short: "Remove a subscription with its positions, parked and dead events",
		Long: `Drop removes a subscription that is not wanted any more. The outbox keeps its
events, for other subscriptions and as long as the retention says; those that
this one has parked or given up go with it.

It refuses while events wait that the subscription has not delivered, or are
parked or dead, unless --yes says that they may go; and while live relays are
configured for it: take it out of their configuration first. --force overrules
both: such relays report that the subscription is gone, and one that starts
makes it anew, and delivers from the first retained event.`,
		Args: exactArguments("NAME"),
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&yes, "yes", false, "give up events that are not delivered, parked or dead")
	cmd.Flags().BoolVar(&force, "force", false, "the same, and do not ask about live relays")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := args[0]
		return withAdmin(cmd, src, func(ctx context.Context, a *admin.Admin) error {
			gone, err := a.Drop(ctx, name, admin.DropOptions{GiveUp: yes || force, Live: force})
			switch {
			case errors.Is(err, admin.ErrRelaysLive):
				return fmt.Errorf("%w\ntake it out of their configuration and restart them, or --force", err)
			case errors.Is(err, admin.ErrUnsettled):
				return fmt.Errorf("%w\n--yes gives them up", err)
			case err != nil:
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{
					"name": name, "pending": gone.Pending, "pending_more": gone.More, "parked": gone.Parked, "dead": gone.Dead,
				})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "dropped %s: %s\n", name, gone)
			return err
		})
	}
	return cmd
}
