package torture

import "syscall"

// dieWithParent has a process killed when we are killed and cannot end it ourselves.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
