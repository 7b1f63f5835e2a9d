package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/window"
)

// bounded bounds the statements of a reader: a connection that has gone silent is given up. The probe is the first to meet
// one after a quiet time, and takes no time else.
type bounded struct {
	window.Source
	probe time.Duration
}

func (b bounded) Position(ctx context.Context) (window.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, b.probe)
	defer cancel()
	return b.Source.Position(ctx)
}

func (b bounded) Page(ctx context.Context, w *window.Window, p, hi int64) (events []window.Event, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return b.Source.Page(ctx, w, p, hi)
}

func (b bounded) NextSeq(ctx context.Context, p int64) (int64, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return b.Source.NextSeq(ctx, p)
}

func (b bounded) Writers(ctx context.Context) (map[uint32]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return b.Source.Writers(ctx)
}

// item is what the reader hands to the publisher: a page, or where it stands with nothing to read.
type item struct {
	page *window.Page
	at   *window.Position
}

// feed reads ahead of the publisher until ctx ends or reading fails. Between two looks that find nothing it pauses, from
// pollMin growing to pollMax. With once it ends at the first look that finds nothing.
func (l *lane) feed(ctx context.Context, reader *window.Reader, out chan<- item, once bool) error {
	defer close(out)
	pause := l.relay.cfg.PollMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	told := int64(-1)
	for {
		page, at, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		it := item{page, at}
		if page != nil || at.H != told || once {
			select {
			case out <- it:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if page != nil {
			pause, told = l.relay.cfg.PollMin, -1
			continue
		}
		told = at.H
		if once {
			return nil
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = min(pause+pause/4+time.Millisecond, l.relay.cfg.PollMax)
	}
}
