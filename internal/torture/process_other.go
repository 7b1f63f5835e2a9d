//go:build unix && !linux

package torture

import "syscall"

// dieWithParent: only Linux can. Should we be killed, the processes stay.
func dieWithParent(*syscall.SysProcAttr) {}
