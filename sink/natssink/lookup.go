package natssink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/commitrelay/outbox/relay"
	"github.com/nats-io/nats.go"
)

const (
	lookupTimeout = 2 * time.Second
	maxLookups    = 32 // of different subjects in one batch
)

// lookups asks JetStream why a subject is not taken: the same answer, "no responders", comes when
// no stream has the subject, when its stream has no leader for a moment, and when JetStream is
// down as a whole. Only the first is the fault of the subject.
type lookups struct {
	sink  *Sink
	conn  *conn
	known map[string]error
}

// why explains, with its mark, that subject was not taken.
func (l *lookups) why(ctx context.Context, subject string) error {
	if err, ok := l.known[subject]; ok {
		return err
	}
	missing := relay.Unavailable(fmt.Errorf("no stream takes the subject %s: create one, or change the topic", shown(subject)))
	if len(l.known) >= maxLookups || l.conn.mayNotLookUp.Load() {
		return missing
	}
	names, err := l.streams(ctx, subject)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		err = errors.New("JetStream does not answer: it is not enabled for this account, or has no leader at the moment")
	case err != nil: // asking may be forbidden: what is known is that nobody took it
		err = missing
	case len(names) == 0:
		err = missing
	default:
		err = fmt.Errorf("stream %q does not answer: it has no leader at the moment", names[0])
	}
	if l.known == nil {
		l.known = make(map[string]error)
	}
	l.known[subject] = err
	return err
}

func (l *lookups) streams(ctx context.Context, subject string) ([]string, error) {
	request, err := json.Marshal(map[string]string{"subject": subject})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *apiError `json:"error"`
		Streams []string  `json:"streams"`
	}
	if err := l.request(ctx, "STREAM.NAMES", request, &answer); err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, nats.ErrNoResponders // 503: JetStream is there and is not able to
	}
	return answer.Streams, nil
}

// maxMessage names the size that a stream allows, or nothing if that cannot be known.
func (l *lookups) maxMessage(ctx context.Context, stream string) string {
	if l.conn.mayNotLookUp.Load() {
		return ""
	}
	var answer struct {
		Config struct {
			MaxMsgSize int `json:"max_msg_size"`
		} `json:"config"`
	}
	if err := l.request(ctx, "STREAM.INFO."+stream, nil, &answer); err != nil || answer.Config.MaxMsgSize <= 0 {
		return ""
	}
	return fmt.Sprintf(" (max_msg_size %d)", answer.Config.MaxMsgSize)
}

func (l *lookups) request(ctx context.Context, verb string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	m, err := l.conn.nc.RequestWithContext(ctx, l.sink.apiPrefix()+verb, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(m.Data, answer)
}

func (s *Sink) apiPrefix() string {
	if s.cfg.Domain != "" {
		return "$JS." + s.cfg.Domain + ".API."
	}
	return "$JS.API."
}
