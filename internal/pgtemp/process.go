package pgtemp

import (
	"os/exec"
	"runtime"
)

// process is a server that we started.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// launch starts cmd, and waits for its end in the background.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.exited)
		// Linux tells a child that its parent has died when the thread ends that made the child:
		// keep that thread as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	return p, <-started
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}
