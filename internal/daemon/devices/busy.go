// Attaching to a device whose earlier program is still on its way out.
package devices

import (
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// Implementation constants. The kernel frees links some time after their last pin has gone: after a grace period, by a worker, and
// both take long on a busy machine.
const (
	BusyPatience = 10 * time.Second
	busyInterval = 50 * time.Millisecond
)

// WhileBusy repeats attach for as long as another program is on the device, at most for patience.
func WhileBusy(log *slog.Logger, patience time.Duration, attach func() error) error {
	for end, said := time.Now().Add(patience), false; ; time.Sleep(busyInterval) {
		err := attach()
		if !errors.Is(err, unix.EBUSY) || !time.Now().Before(end) {
			return err
		}
		if !said {
			log.Warn("another program is on the device: waiting for it to go", "for at most", patience, "error", err)
			said = true
		}
	}
}
