package tcpproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that answers each line with name and the line, and hands out what it received.
func echo(t *testing.T, name string) (addr string, received <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			running.Go(func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					lines <- in.Text()
					if _, err := io.WriteString(c, name+in.Text()+"\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return l.Addr().String(), lines
}

func listen(t *testing.T, target string) *tcpproxy.Proxy {
	t.Helper()
	p, err := tcpproxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// client is a connection through the proxy whose lines arrive in a channel, closed at its end.
type client struct {
	net.Conn
	lines chan string
	err   error // why lines ended; valid once it is closed
}

func dial(t *testing.T, p *tcpproxy.Proxy) *client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	c := &client{Conn: conn, lines: make(chan string, 1000)}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(c.lines)
		in := bufio.NewScanner(conn)
		for in.Scan() {
			c.lines <- in.Text()
		}
		c.err = in.Err()
	})
	t.Cleanup(func() { conn.Close(); reader.Wait() })
	return c
}

func (c *client) send(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func (c *client) expect(t *testing.T, want string) {
	t.Helper()
	if got := testwait.Recv(t, "the line "+want, c.lines); got != want {
		t.Fatalf("received %q, want %q", got, want)
	}
}

func (c *client) expectReset(t *testing.T) {
	t.Helper()
	testwait.Closed(t, "the connection's end", c.lines)
	if !errors.Is(c.err, syscall.ECONNRESET) {
		t.Fatalf("connection ended with %v, want a reset", c.err)
	}
}

// expectResetOnDial connects and wants a reset; it may come before the dial has returned.
func expectResetOnDial(t *testing.T, p *tcpproxy.Proxy) {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("connection ended with %v, want a reset", err)
	}
}

func TestForwardsAndClosesHalf(t *testing.T) {
	addr, _ := echo(t, "")
	c := dial(t, listen(t, addr))
	c.send(t, "one")
	c.expect(t, "one")
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	testwait.Closed(t, "the connection's end", c.lines)
	if c.err != nil {
		t.Errorf("connection ended with %v, want a clean end", c.err)
	}
}

func TestCutResetsOpenConnectionsOnly(t *testing.T) {
	addr, _ := echo(t, "")
	p := listen(t, addr)
	a, b := dial(t, p), dial(t, p)
	for _, c := range []*client{a, b} {
		c.send(t, "x")
		c.expect(t, "x")
	}
	if got := p.Cut(); got != 2 {
		t.Errorf("Cut = %d, want 2", got)
	}
	a.expectReset(t)
	b.expectReset(t)
	c := dial(t, p)
	c.send(t, "y")
	c.expect(t, "y")
	if got := p.Accepted(); got != 3 {
		t.Errorf("Accepted = %d, want 3", got)
	}
	testwait.Until(t, "one connection left", func() bool { return p.Open() == 1 })
}

func TestPausedAnswersArriveLater(t *testing.T) {
	addr, received := echo(t, "")
	p := listen(t, addr)
	c := dial(t, p)
	c.send(t, "before")
	c.expect(t, "before")
	testwait.Recv(t, "before at the server", received)

	p.Pause(tcpproxy.ToClient)
	c.send(t, "during")
	if got := testwait.Recv(t, "the request", received); got != "during" {
		t.Fatalf("server received %q, want %q", got, "during")
	}
	fresh := dial(t, p) // a new connection is as deaf
	fresh.send(t, "new")
	testwait.Recv(t, "the request of the new connection", received)
	if n := len(c.lines) + len(fresh.lines); n != 0 {
		t.Fatalf("%d answers passed a paused proxy", n)
	}
	p.Resume()
	c.expect(t, "during")
	fresh.expect(t, "new")
}

func TestPausedRequestsArriveLater(t *testing.T) {
	addr, received := echo(t, "")
	p := listen(t, addr)
	c := dial(t, p)
	c.send(t, "before")
	c.expect(t, "before")
	testwait.Recv(t, "before at the server", received)
	p.PauseOpen(tcpproxy.ToServer)
	c.send(t, "during")
	fresh := dial(t, p) // not paused: it overtakes
	fresh.send(t, "new")
	fresh.expect(t, "new")
	if got := testwait.Recv(t, "the new connection's request", received); got != "new" {
		t.Fatalf("server received %q, want %q", got, "new")
	}
	p.Resume()
	c.expect(t, "during")
}

func TestAPausedConnectionCanBeCut(t *testing.T) {
	addr, _ := echo(t, "")
	p := listen(t, addr)
	c := dial(t, p)
	testwait.Until(t, "forwarded", func() bool { return p.Open() == 1 })
	p.Pause(tcpproxy.Both)
	c.send(t, "lost")
	p.Cut()
	c.expectReset(t)
}

func TestCutAfterForwardsExactly(t *testing.T) {
	addr, received := echo(t, "")
	p := listen(t, addr)
	p.CutAfter(tcpproxy.ToServer, int64(len("one\ntwo\n")))
	c := dial(t, p)
	for _, line := range []string{"one", "two"} {
		c.send(t, line)
		c.expect(t, line)
	}
	c.send(t, "three")
	c.expectReset(t)
	c = dial(t, p) // it acts once
	c.send(t, "four")
	c.expect(t, "four")
	for _, want := range []string{"one", "two", "four"} {
		if got := testwait.Recv(t, want, received); got != want {
			t.Errorf("server received %q, want %q", got, want)
		}
	}
}

func TestRefuseRejectAccept(t *testing.T) {
	addr, _ := echo(t, "")
	p := listen(t, addr)
	open := dial(t, p)
	open.send(t, "open")
	open.expect(t, "open")

	p.Refuse()
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial = %v, want connection refused", err)
	}
	open.send(t, "still")
	open.expect(t, "still")
	if err := p.Accept(); err != nil {
		t.Fatal(err)
	}
	c := dial(t, p)
	c.send(t, "again")
	c.expect(t, "again")

	p.Reject()
	before := p.Accepted()
	expectResetOnDial(t, p)
	if got := p.Accepted() - before; got != 1 {
		t.Errorf("rejected connections counted: %d, want 1", got)
	}
}

func TestSetTarget(t *testing.T) {
	a, _ := echo(t, "a:")
	b, _ := echo(t, "b:")
	p := listen(t, a)
	c := dial(t, p)
	c.send(t, "x")
	c.expect(t, "a:x")
	p.SetTarget(b)
	c.send(t, "y")
	c.expect(t, "a:y")
	c = dial(t, p)
	c.send(t, "z")
	c.expect(t, "b:z")
}

func TestAbsentTargetResetsTheClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	expectResetOnDial(t, listen(t, l.Addr().String()))
}

func TestDelayKeepsTheOrder(t *testing.T) {
	addr, _ := echo(t, "")
	p := listen(t, addr)
	p.Delay(5 * time.Millisecond)
	c := dial(t, p)
	for _, line := range []string{"one", "two", "three"} {
		c.send(t, line)
	}
	for _, line := range []string{"one", "two", "three"} {
		c.expect(t, line)
	}
}

// Everything at once: for the race detector, and to see that Close ends all of it.
func TestConcurrentUse(t *testing.T) {
	addr, _ := echo(t, "")
	p := listen(t, addr)
	var users sync.WaitGroup
	for range 8 {
		users.Go(func() {
			for range 20 {
				c, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				_, _ = io.WriteString(c, "x\n")
				p.Pause(tcpproxy.Both)
				p.PauseOpen(tcpproxy.ToClient)
				p.CutAfter(tcpproxy.Both, 1)
				p.Resume()
				p.Cut()
				c.Close()
			}
		})
	}
	users.Wait()
	p.Pause(tcpproxy.Both)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if got := p.Open(); got != 0 {
		t.Errorf("%d connections open after Close", got)
	}
}

func TestDelayOfOneDirection(t *testing.T) {
	addr, received := echo(t, "")
	p := listen(t, addr)
	p.DelayOnly(tcpproxy.ToClient, time.Hour)
	c := dial(t, p)
	c.send(t, "one")
	if got := testwait.Recv(t, "the request", received); got != "one" {
		t.Errorf("the server received %q, want the request at once", got)
	}
	p.Cut() // a piece that waits is lost with its connection
	c.expectReset(t)
	if line, ok := <-c.lines; ok {
		t.Errorf("received %q, want nothing for an hour", line)
	}
	p.DelayOnly(tcpproxy.Both, 0)
	d := dial(t, p)
	d.send(t, "two")
	d.expect(t, "two")
}
