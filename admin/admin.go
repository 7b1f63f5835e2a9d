// Package admin is for those who operate relays: it looks at subscriptions, pauses and drops them, and changes the number of
// their lanes. It works on the database alone, whether relays run or not; `commitrelay subscriptions` is its command line.
package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/nearest"
	"github.com/commitrelay/outbox/internal/store"
)

var (
	// ErrNoSubscription says that no subscription of that name was ever configured, or that it has been dropped.
	ErrNoSubscription = errors.New("no such subscription")

	// ErrBadLanes says that a number of lanes is not a power of two from 1 to 1024.
	ErrBadLanes = errors.New("a number of lanes is a power of two from 1 to 1024")

	// ErrRelaysLive says that relays are at work that are configured for the subscription.
	ErrRelaysLive = errors.New("relays are running")

	// ErrUnsettled says that a subscription has events that it has not delivered.
	ErrUnsettled = errors.New("events are not settled")

	// ErrOverruled says that someone else has asked for something else meanwhile.
	ErrOverruled = errors.New("someone else has decided otherwise")
)

// Options say where the outbox is.
type Options struct {
	// Table is the outbox's events table: "table" or "schema.table", names as they stand in the catalog. Default
	// "public.outbox_events".
	Table string

	// Schema holds commitrelay's own tables. Default "commitrelay".
	Schema string
}

// Admin operates the subscriptions of one outbox. It is safe for concurrent use.
type Admin struct {
	store *store.Store
}

// Open finds the outbox. The pool stays the caller's to close; its role needs the rights of a relay.
func Open(ctx context.Context, pool *pgxpool.Pool, opts Options) (*Admin, error) {
	if opts.Table == "" {
		opts.Table = "public.outbox_events"
	}
	if opts.Schema == "" {
		opts.Schema = "commitrelay"
	}
	table, err := ident.Parse(opts.Table)
	if err == nil {
		err = ident.Valid(opts.Schema)
	}
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	st, err := store.Open(ctx, pool, table, opts.Schema)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return &Admin{st}, nil
}

// Subscription is what is stored of a subscription, and who delivers it.
type Subscription struct {
	Name           string
	Sink           string   // as the relays' configuration calls it
	Topic          string   // the template
	OnDead         string   // "continue" or "block"
	AggregateTypes []string // the filter; none: all
	EventTypes     []string
	Lanes          int
	LanesWanted    int // another number than Lanes: it is being changed
	Paused         bool
	CreatedAt      time.Time
	Parked         int64   // events that wait for a retry, or behind one
	Dead           int64   // events that were given up
	Relays         []Relay // that live and are configured for it
}

// Relay is a live relay that is configured for a subscription.
type Relay struct {
	ID    string
	Host  string
	PID   int
	Lanes []int // in its hands
}

// String names a relay for people.
func (r Relay) String() string { return fmt.Sprintf("%s pid %d", r.Host, r.PID) }

// Subscriptions returns every subscription that was ever configured and not dropped, by name.
func (a *Admin) Subscriptions(ctx context.Context) ([]Subscription, error) {
	infos, err := a.store.Subscriptions(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	relays, err := a.store.Relays(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	lanes, err := a.store.Lanes(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	subs := make([]Subscription, 0, len(infos))
	for _, i := range infos {
		subs = append(subs, Subscription{
			Name: i.Name, Sink: i.Sink, Topic: i.Topic, OnDead: i.OnDead, AggregateTypes: i.AggregateTypes, EventTypes: i.EventTypes,
			Lanes: i.Lanes, LanesWanted: i.Wanted, Paused: i.Paused, CreatedAt: i.CreatedAt, Parked: i.Parked, Dead: i.Dead,
			Relays: serving(i.Name, relays, lanes[i.Name]),
		})
	}
	return subs, nil
}

// serving are the live relays that are configured for a subscription, with the lanes they have.
func serving(name string, relays []store.RelayStatus, lanes []store.LaneStatus) []Relay {
	var list []Relay
	for _, r := range relays {
		if !r.Alive || !r.Serves(name) {
			continue
		}
		relay := Relay{ID: r.ID, Host: r.Host, PID: r.PID}
		for _, l := range lanes {
			if l.Owner == r.ID && l.Lease > 0 {
				relay.Lanes = append(relay.Lanes, l.Lane)
			}
		}
		list = append(list, relay)
	}
	return list
}

// Pause asks the relays to give the lanes of a subscription back, which they do within a second or so, and to take none until
// Resume; AwaitPaused waits for that. Its events wait, wherever they are. changed is false if it was paused already.
func (a *Admin) Pause(ctx context.Context, name string) (changed bool, err error) {
	was, err := a.pause(ctx, name, true)
	return !was && err == nil, err
}

// Resume takes Pause back: relays go on where they stopped. changed is false if the subscription was not paused.
func (a *Admin) Resume(ctx context.Context, name string) (changed bool, err error) {
	was, err := a.pause(ctx, name, false)
	return was && err == nil, err
}

func (a *Admin) pause(ctx context.Context, name string, paused bool) (was bool, err error) {
	was, found, err := a.store.Pause(ctx, name, paused)
	if err != nil {
		return was, fmt.Errorf("admin: %w", err)
	}
	if !found {
		return was, a.noSubscription(ctx, name)
	}
	return was, nil
}

// SetLanes asks for another number of lanes: a power of two from 1 to 1024 (ErrBadLanes). Relays bring all lanes to one place,
// change the number there, and share the new ones out: no event is lost, repeated or overtaken. AwaitLanes waits for that. The
// request is kept until a relay can do it; asking for the present number takes it back.
func (a *Admin) SetLanes(ctx context.Context, name string, lanes int) error {
	if lanes < 1 || lanes > 1024 || lanes&(lanes-1) != 0 {
		return fmt.Errorf("admin: %d lanes: %w", lanes, ErrBadLanes)
	}
	_, found, err := a.store.WantLanes(ctx, name, lanes)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	if !found {
		return a.noSubscription(ctx, name)
	}
	return nil
}

// noSubscription is the error for a name that is not there. It names the one that was meant.
func (a *Admin) noSubscription(ctx context.Context, name string) error {
	infos, err := a.store.Subscriptions(ctx)
	if err != nil {
		return fmt.Errorf("admin: %q: %w", name, ErrNoSubscription)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	hint := "there are none: a relay makes those it is configured for known when it first runs"
	if near := nearest.Name(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(names) > 0 {
		hint = "there are " + strings.Join(names[:min(len(names), 20)], ", ")
	}
	return fmt.Errorf("admin: %q: %w: %s", name, ErrNoSubscription, hint)
}

// scene is one subscription, with its lanes and all relays that have not said goodbye.
type scene struct {
	store.SubscriptionInfo
	relays []store.RelayStatus
	lanes  []store.LaneStatus
}

func (a *Admin) find(ctx context.Context, name string) (s scene, err error) {
	infos, err := a.store.Subscriptions(ctx)
	if err != nil {
		return s, fmt.Errorf("admin: %w", err)
	}
	i := slices.IndexFunc(infos, func(i store.SubscriptionInfo) bool { return i.Name == name })
	if i < 0 {
		return s, a.noSubscription(ctx, name)
	}
	s.SubscriptionInfo = infos[i]
	if s.relays, err = a.store.Relays(ctx); err != nil {
		return s, fmt.Errorf("admin: %w", err)
	}
	lanes, err := a.store.Lanes(ctx, name)
	if err != nil {
		return s, fmt.Errorf("admin: %w", err)
	}
	s.lanes = lanes[name]
	return s, nil
}
