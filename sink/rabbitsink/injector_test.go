package rabbitsink

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"testing"
)

func benchURL(b *testing.B) string {
	b.Helper()
	s := os.Getenv("COMMITRELAY_TEST_RABBITMQ")
	if s == "" {
		b.Fatal("COMMITRELAY_TEST_RABBITMQ is not set")
	}
	return s
}

// injector forwards one connection to a broker, and puts frames of its own between the broker's.
type injector struct {
	addr string

	mu     sync.Mutex // held while a frame is written to the client
	client net.Conn
}

func newInjector(t *testing.T, target string) *injector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	in := &injector{addr: l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		in.mu.Lock()
		in.client = client
		in.mu.Unlock()
		running.Go(func() {
			_, _ = io.Copy(server, client)
			server.Close()
		})
		in.frames(client, server)
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return in
}

// frames forwards whole frames: a type, a channel, a size, so many bytes, and an end.
func (in *injector) frames(client io.Writer, server io.Reader) {
	r := bufio.NewReader(server)
	for {
		header, err := r.Peek(7)
		if err != nil {
			return
		}
		frame := make([]byte, 7+binary.BigEndian.Uint32(header[3:])+1)
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		in.mu.Lock()
		_, err = client.Write(frame)
		in.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (in *injector) send(t *testing.T, frame []byte) {
	t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, err := in.client.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// methodFrame is a method of class 10 (connection) on channel 0.
func methodFrame(method uint16, args []byte) []byte {
	b := []byte{1, 0, 0}
	b = binary.BigEndian.AppendUint32(b, uint32(4+len(args)))
	b = binary.BigEndian.AppendUint16(b, 10)
	b = binary.BigEndian.AppendUint16(b, method)
	return append(append(b, args...), 0xce)
}

func blockedFrame(reason string) []byte {
	return methodFrame(60, append([]byte{byte(len(reason))}, reason...))
}

func unblockedFrame() []byte { return methodFrame(61, nil) }
