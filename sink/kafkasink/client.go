package kafkasink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/commitrelay/outbox/sink/internal/dial"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// client is a Kafka client with connections and a producer id of its own. One call of Publish uses
// it at a time.
//
// It is not shared, because a client fails all that it holds for a partition when the broker
// refuses one batch of it, and goes on with what it is given after that. If the batch was another
// call's, then the later ones of a key could be taken and the earlier ones not.
type client struct {
	kgo    *kgo.Client
	kind   kind
	made   time.Time
	era    int
	limits map[string]int  // of batches, by topic: the sink's in that era
	topics map[string]bool // known to exist
	used   map[string]bool // topics that were sent to
	spent  bool            // not to be used again

	mu      sync.Mutex
	dialErr error // of the last connection, if it failed
	killed  error // why it is closed
}

// maxAge bounds the life of a client. A broker forgets a producer that has not written to a
// partition for a day (producer.id.expiration.ms), and takes any sequence number from one that it
// does not know: of two batches in flight it could take the second and refuse the first.
const maxAge = 12 * time.Hour

// kill closes the client. What it holds ends with an error, soon, and is not sent any more: an
// idempotent producer does not give up what may have arrived, and would send it again behind our
// back.
func (c *client) kill(cause error) {
	c.mu.Lock()
	first := c.killed == nil
	if first {
		c.killed = cause
	}
	c.mu.Unlock()
	if first {
		c.kgo.Close()
	}
}

// cause is why the client was killed, or nil.
func (c *client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed
}

// connectLimit bounds an attempt to connect to any of the brokers: two may be silent, however many
// there are. The next attempt has them in another order.
func (s *Sink) connectLimit() time.Duration {
	return s.cfg.ConnectTimeout * time.Duration(min(len(s.to.brokers), 2))
}

// connect gives c a connection, logs in, and gets the right to write.
func (s *Sink) connect(ctx context.Context, c *client) error {
	wait := s.connectLimit()
	tooLong := fmt.Errorf("no answer within %v (is it a Kafka port, and right with or without TLS?)", wait)
	limited, cancel := context.WithTimeoutCause(ctx, wait, tooLong)
	defer cancel()
	err := c.kgo.Ping(limited)
	if err == nil {
		// Brokers name the addresses to go on with, and these may be wrong where the first was right.
		if _, _, err = c.kgo.ProducerID(limited); err != nil {
			err = fmt.Errorf("get a producer id: %w", err)
		}
	}
	switch {
	case err == nil:
		return nil
	case c.cause() != nil:
		return c.cause()
	case ctx.Err() != nil:
		err = context.Cause(ctx) // however it showed
	case limited.Err() != nil || isTimeout(err): // a dialer's clock may be ahead of the context's
		err = c.withDialError(tooLong)
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		err = fmt.Errorf("user or password is wrong: %w", err)
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		err = fmt.Errorf("sasl mechanism %s: %w", s.cfg.SASLMechanism, err)
	}
	return fmt.Errorf("kafka: connect to %s: %w", s.to, err)
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

func (s *Sink) options(c *client) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.ClientID(s.cfg.Name),
		kgo.SeedBrokers(shuffled(s.to.brokers)...), // the library asks them in this order
		kgo.Dialer(s.dialer(c)),
		kgo.RequestTimeoutOverhead(max(s.cfg.ConnectTimeout, 100*time.Millisecond)),
		kgo.ConnIdleTimeout(5 * time.Minute), // brokers hang up after ten
		kgo.RetryBackoffFn(retryBackoff),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.AlwaysRetryEOF(),
		kgo.DisableClientMetrics(),

		// Idempotent, and acks=all, are the defaults.
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), // the key's hash, as Java's client has it
		kgo.ManualFlushing(),
		kgo.WithHooks(placements{}),
		kgo.MaxBufferedRecords(math.MaxInt32), // Publish waits for all it has given: its caller is the bound
		kgo.ProducerBatchCompression(codecs[s.cfg.Compression]),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return int32(s.largestBatch(c, topic)) }),
		kgo.BrokerMaxWriteBytes(int32(max(100<<20, s.cfg.MaxMessageBytes+1<<20))),
		kgo.ProduceRequestTimeout(max(s.cfg.AckTimeout, 100*time.Millisecond)),
		// What was certainly not taken, as by too few replicas, is given back before the client is
		// given up.
		kgo.RecordDeliveryTimeout(max(s.cfg.AckTimeout*3/4, time.Second)),
	}
	if s.to.user != "" {
		opts = append(opts, kgo.SASL(s.cfg.mechanism(s.to)))
	}
	return opts
}

func shuffled(list []string) []string {
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// retryBackoff is the pause before the next try: short, for a broker that is back is not to wait
// for us.
func retryBackoff(tries int) time.Duration {
	d := min(50*time.Millisecond<<min(tries, 8), time.Second)
	return d/2 + rand.N(d/2)
}

// dialer connects to one broker.
func (s *Sink) dialer(c *client) func(ctx context.Context, network, address string) (net.Conn, error) {
	connect := s.connectTCP()
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := connect(ctx, network, address)
		if err == nil && s.to.tls {
			conn, err = s.handshake(ctx, conn, address)
		}
		c.mu.Lock()
		c.dialErr = err
		c.mu.Unlock()
		return conn, err
	}
}

func (s *Sink) handshake(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	config, err := dial.TLS(s.cfg.CAFile, s.cfg.CertFile, s.cfg.KeyFile)
	if err == nil {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		config.ServerName, _, err = net.SplitHostPort(address)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
		defer cancel()
		client := tls.Client(conn, config)
		if err = client.HandshakeContext(ctx); err == nil {
			return client, nil
		}
	}
	conn.Close()
	return nil, fmt.Errorf("tls with %s: %w (is it a port with TLS?)", address, err)
}

// withDialError adds why a broker cannot be reached, if the last attempt failed.
func (c *client) withDialError(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialErr == nil || errors.Is(c.dialErr, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w; a broker cannot be reached: %w", err, c.dialErr)
}
