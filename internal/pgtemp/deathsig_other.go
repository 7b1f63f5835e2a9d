//go:build !linux

package pgtemp

import "syscall"

// dieWithParent does nothing: only Linux can do that.
func dieWithParent(*syscall.SysProcAttr) {}
