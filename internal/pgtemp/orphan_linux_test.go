package pgtemp_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/jackc/pgx/v5"
)

// orphanEnv makes the test binary a process that starts a server and then waits to be killed.
const orphanEnv = "PGTEMP_TEST_ORPHAN"

func beOrphaned() {
	c, err := pgtemp.Start(context.Background(), pgtemp.Options{Dir: os.Getenv(orphanEnv), Parameters: quick})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("url", c.URL())
	select {}
}

func TestTheServerDoesNotSurviveUs(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	reachable(t, dir)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), orphanEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "url ")
	if !ok {
		t.Errorf("the helper printed %q, want its URL", line)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
	testwait.Until(t, "the server has stopped", func() bool {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return true
		}
		conn.Close(t.Context())
		return false
	})
}
