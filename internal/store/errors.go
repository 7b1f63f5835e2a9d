package store

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// personError is one that only a person can mend.
type personError struct{ error }

// Transient says whether an error of PostgreSQL or of the way to it may go away by itself: the server restarts, a
// connection breaks, a statement was cancelled or lost against another. Wrong passwords, missing tables and missing
// rights do not.
func Transient(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(pgErr.Code, "08"), // connection exception
			strings.HasPrefix(pgErr.Code, "40"), // rolled back: serialization, deadlock
			strings.HasPrefix(pgErr.Code, "53"), // insufficient resources: too many connections, disk full
			strings.HasPrefix(pgErr.Code, "55"), // not in the required state: lock not available
			strings.HasPrefix(pgErr.Code, "57"), // operator intervention: shutdown, cancelled, starting up
			strings.HasPrefix(pgErr.Code, "58"), // system error
			pgErr.Code == "25006",               // read only: a standby, until it is promoted;
			pgErr.Code == "0A000":               // that is also when unlogged tables cannot be read
			return true
		}
		return false
	}
	var parse *pgconn.ParseConfigError
	var sequence *SequenceError
	if errors.As(err, &parse) || errors.As(err, &sequence) {
		return false
	}
	if _, ok := errors.AsType[personError](err); ok {
		return false
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, ErrNoTable)
}

// serialization says whether a statement failed because it met another's, under a strict isolation.
func serialization(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "40001"
}
