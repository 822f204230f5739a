// Package resident gives memory back that a process took to start.
package resident

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Spare lets the heap grow by half of what is in use between two collections, and not by all of it, unless GOGC says otherwise.
func Spare() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// GiveBack returns the heap that is not in use to the kernel, and takes the pages of the program's file out of this process that nothing was written to:
// half of them only the start needed. A page that is used again comes from the page cache.
func GiveBack() error {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer file.Close()
	mappings, err := unchanged(bufio.NewScanner(file), program)
	for _, m := range mappings {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back pages of %s: %w", program, errno)
		}
	}
	return err
}

// A mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// unchanged are the mappings of a file, from /proc/PID/smaps (proc(5)), that cannot be written to, and have no pages but the file's.
func unchanged(smaps *bufio.Scanner, name string) (found []mapping, err error) {
	var m mapping
	candidate := false
	for smaps.Scan() {
		fields := strings.Fields(smaps.Text())
		if len(fields) < 2 {
			continue
		}
		if start, end, isRange := strings.Cut(fields[0], "-"); isRange {
			candidate = len(fields) == 6 && fields[5] == name && !strings.Contains(fields[1], "w")
			if m, err = parse(start, end); err != nil {
				return nil, err
			}
			continue
		}
		switch fields[0] {
		case "Anonymous:", "Swap:": // a page that was written to is no longer the file's
			candidate = candidate && fields[1] == "0"
		case "VmFlags:": // the last line of a mapping
			if candidate {
				found = append(found, m)
			}
		}
	}
	return found, smaps.Err()
}

func parse(start, end string) (m mapping, err error) {
	from, err := strconv.ParseUint(start, 16, 64)
	if err != nil {
		return m, err
	}
	to, err := strconv.ParseUint(end, 16, 64)
	return mapping{uintptr(from), uintptr(to)}, err
}
