package kafkasink

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ownBroker is one that this test alone uses, and may kill.
type ownBroker struct {
	t    *testing.T
	args []string
	addr string
	cmd  *exec.Cmd
	done chan struct{}
}

func newOwnBroker(t *testing.T) *ownBroker {
	t.Helper()
	b := &ownBroker{t: t, args: []string{t.TempDir()}}
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		b.args = append(b.args, port)
	}
	b.addr = "127.0.0.1:" + b.args[1]
	t.Cleanup(func() { b.kill() })
	return b
}

func (b *ownBroker) start() {
	b.t.Helper()
	b.cmd = exec.Command(variable(b.t, "COMMITRELAY_TEST_KAFKA_RUN"), b.args...)
	log, err := os.OpenFile(filepath.Join(b.args[0], "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan<- struct{}) {
		defer close(done)
		_ = cmd.Wait()
	}(b.cmd, b.done)
}

// kill ends the broker as kill -9 does: run has become the broker.
func (b *ownBroker) kill() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill()
	<-b.done // it was killed: its error says nothing
	b.cmd = nil
}
