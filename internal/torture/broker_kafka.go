//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/commitrelay/outbox/sink/kafkasink"
)

// openKafkaSink connects to the proxy, whatever address the broker names: it knows only its own.
func openKafkaSink(f relayFlags, _ *journal) (closingSink, string, error) {
	proxy := strings.TrimPrefix(f.url, "kafka://")
	s, err := kafkasink.New(kafkasink.Config{
		URL: f.url, Name: f.id, ConnectTimeout: 2 * time.Second, AckTimeout: 5 * time.Second,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, proxy)
		},
	})
	return s, f.name, err
}

// kafkaRunVariable is a command that runs a broker, which scripts/services makes.
const kafkaRunVariable = "COMMITRELAY_TEST_KAFKA_RUN"

// kafkaPartitions are those of the topic. A key's events are all in one.
const kafkaPartitions = 4

// kafkaBroker is a broker in a process of its own, with one topic.
type kafkaBroker struct {
	run, dir, name string

	busy             sync.Mutex // one restart at a time
	port, controller int
	server           *process
	client           *kgo.Client // reads the topic
	admin            *kadm.Client
	next             map[int32]int64 // offset to read, by partition
}

func startKafka(ctx context.Context, dir, name string) (*kafkaBroker, error) {
	b := &kafkaBroker{run: os.Getenv(kafkaRunVariable), dir: dir, name: name, next: map[int32]int64{}}
	if b.run == "" {
		return nil, fmt.Errorf("%s is not set: run `make torture SINK=kafka`, or set it to a command that runs a broker", kafkaRunVariable)
	}
	var errs [3]error
	b.port, errs[0] = freePort()
	b.controller, errs[1] = freePort()
	errs[2] = os.Mkdir(filepath.Join(dir, "kafka"), 0o700)
	err := errors.Join(errs[:]...)
	if err == nil {
		err = b.start()
	}
	if err == nil {
		err = b.open(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare Kafka: %w", err), b.Close(ctx))
	}
	return b, nil
}

func (b *kafkaBroker) start() (err error) {
	b.server, err = launch(filepath.Join(b.dir, "kafka.log"), b.run, filepath.Join(b.dir, "kafka"), strconv.Itoa(b.port), strconv.Itoa(b.controller))
	return err
}

// open makes the topic, and clients of our own.
func (b *kafkaBroker) open(ctx context.Context) (err error) {
	start := map[int32]kgo.Offset{}
	for p := range int32(kafkaPartitions) {
		start[p] = kgo.NewOffset().AtStart()
	}
	b.client, err = kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.DisableClientMetrics(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.name: start}))
	if err != nil {
		return err
	}
	b.admin = kadm.NewClient(b.client)
	// The time of arrival is the broker's to tell.
	config := map[string]*string{"message.timestamp.type": new("LogAppendTime")}
	for end := time.Now().Add(time.Minute); ; {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := b.admin.CreateTopic(attempt, kafkaPartitions, 1, config, b.name)
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(end) || !b.server.running() {
			return err
		}
		pause(ctx, 100*time.Millisecond)
	}
	return b.ready(ctx)
}

// ready waits until the topic answers.
func (b *kafkaBroker) ready(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; {
		_, err := b.ends(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(end) || !b.server.running() {
			return fmt.Errorf("wait for the topic: %w", err)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// ends are the offsets of the topic's ends.
func (b *kafkaBroker) ends(ctx context.Context) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	offsets, err := b.admin.ListEndOffsets(ctx, b.name)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, err
	}
	ends := map[int32]int64{}
	offsets.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	if len(ends) < kafkaPartitions {
		return nil, fmt.Errorf("%d of %d partitions answer", len(ends), kafkaPartitions)
	}
	return ends, nil
}

func (b *kafkaBroker) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

func (b *kafkaBroker) URL(proxy string) string { return "kafka://" + proxy }

func (b *kafkaBroker) Restart(ctx context.Context, down time.Duration, hard bool) error {
	b.busy.Lock()
	defer b.busy.Unlock()
	if !hard {
		if err := b.server.signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop Kafka: %w", err)
		}
		timer := time.NewTimer(20 * time.Second)
		defer timer.Stop()
		select {
		case <-b.server.exited:
		case <-timer.C:
		}
	}
	b.server.kill()
	pause(ctx, down)
	if err := b.start(); err != nil {
		return err
	}
	return b.ready(context.WithoutCancel(ctx))
}

// RefuseTopic is not for Kafka: there is one topic, and to delete it would delete what has arrived.
func (b *kafkaBroker) RefuseTopic(context.Context, string, bool) error {
	return errors.New("kafka has one topic")
}

func (b *kafkaBroker) Read(ctx context.Context) ([]Arrival, error) {
	ends, err := b.ends(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the topic: %w", err)
	}
	var arrivals []Arrival
	for !b.reached(ends) {
		attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
		fetches := b.client.PollFetches(attempt)
		cancel()
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("read the topic: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			a := arrival(func(name string) string {
				for _, h := range r.Headers {
					if h.Key == name {
						return string(h.Value)
					}
				}
				return ""
			}, r.Value)
			a.At, a.Place = r.Timestamp, fmt.Sprintf("partition %d, offset %d", r.Partition, r.Offset)
			arrivals = append(arrivals, a)
			b.next[r.Partition] = r.Offset + 1
		})
	}
	return arrivals, nil
}

// reached says whether all has been read up to there.
func (b *kafkaBroker) reached(ends map[int32]int64) bool {
	for p, end := range ends {
		if b.next[p] < end {
			return false
		}
	}
	return true
}

func (b *kafkaBroker) Close(context.Context) error {
	if b.client != nil {
		b.client.Close()
	}
	if b.server != nil {
		b.server.kill()
	}
	return nil
}
