package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/window"
)

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
