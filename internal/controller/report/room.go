// Whether the store's disk has room.
package report

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// roomLeast is what etcd needs to begin its next file of 64 MB, and its database to grow by as much. Where it cannot,
// this process ends.
const roomLeast = 2 * 64 << 20

// roomProblem says that the store of this controller may soon not go on; empty: it has room, or is elsewhere.
func roomProblem(dataDir string, least uint64) string {
	var disk unix.Statfs_t
	if dataDir == "" || unix.Statfs(dataDir, &disk) != nil {
		return ""
	}
	if room := disk.Bavail * uint64(disk.Bsize); room < least {
		return fmt.Sprintf("the disk of %s has room for %d MB: with less than the store needs, at most %d MB, this controller ends: make room", dataDir, room>>20, least>>20)
	}
	return ""
}
