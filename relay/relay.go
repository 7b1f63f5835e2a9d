package relay

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Relay moves committed events to sinks.
type Relay struct{}

// ErrLanesHeld is returned by Drain when lanes belong to another live relay.
var ErrLanesHeld = errors.New("lanes are held by another relay")

// New validates cfg and returns a Relay.
func New(pool *pgxpool.Pool, cfg Config) (*Relay, error) { return &Relay{}, nil }

// Run delivers until ctx ends.
func (r *Relay) Run(ctx context.Context) error { return nil }

// Drain delivers all that is due now.
func (r *Relay) Drain(ctx context.Context) (int, error) { return 0, nil }

// Health says how the relay fares.
func (r *Relay) Health() Health { return Health{} }
