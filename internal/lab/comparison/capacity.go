package comparison

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Capacity is what connections take that say nothing, and how fast new ones come.
type Capacity struct {
	Idle      int     `json:"idle_connections"`           // that were open
	Total     float64 `json:"idle_total_kb"`              // kB of each: the kernel's sockets, those of clients and servers too, its tracked connections, and Own
	Balancers float64 `json:"idle_balancers_kb"`          // Total without that of direct; 0 where that was not measured
	Own       float64 `json:"idle_process_kb"`            // of the balancers' processes
	New       float64 `json:"new_connections_per_second"` // of one request each, 64 at once (wrk)
	Errors    string  `json:"errors,omitempty"`           // that wrk reported
}

// measureCapacity opens idle connections, which answers have gone by once, and then as many new ones as go.
func (r *round) measureCapacity() (c Capacity) {
	kernel, own := script.Must(kernelMemory()), r.ownMemory()
	flow := traffic.Flow{Name: flowOpen, Target: target.String(), Concurrent: r.idle, PerSecond: float64(r.idle) / r.opening.Seconds(),
		Requests: []traffic.Request{{Path: world.PathName}, {Path: world.PathName, Pause: r.silence}}}
	load := r.t.Traffic.GenerateTimed(r.step.Seed, world.Stall, flow)
	r.t.Traffic.Until(load, time.Minute, "all idle connections are open", func(p traffic.Progress) bool {
		return p.OpenByFlow[flowOpen] >= r.idle && p.Served() >= r.idle
	})
	const bytesPerKB = 1024
	c.Idle = load.Now().Open
	c.Own = (r.ownMemory() - own) / float64(c.Idle) / bytesPerKB
	c.Total = (script.Must(kernelMemory())-kernel)/float64(c.Idle)/bytesPerKB + c.Own
	load.Finish(r.t.Context)
	for again := range r.repeats {
		_, cost := r.wrk("-H", "Connection: close")
		if again == 0 || cost.PerSecond > c.New {
			c.New, c.Errors = cost.PerSecond, cost.Errors
		}
	}
	return c
}

// ofConnections are the kernel's caches, or how their names begin, that have something of every connection. Others grow with what else the machine does.
// Tables that have all of their memory from the start are not among them: they do not grow.
var ofConnections = []string{"TCP", "sock_inode_cache", "eventpoll_", "nf_conntrack", "ip_vs_conn"}

// kernelMemory is what the kernel keeps of connections, in bytes.
func kernelMemory() (bytes float64, err error) {
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return 0, fmt.Errorf("read the kernel's memory: %w", err)
	}
	return parseSlabs(text)
}

// parseSlabs adds up /proc/slabinfo: name, objects in use, objects, size of one, ...
func parseSlabs(text []byte) (total float64, err error) {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 4 || !slices.ContainsFunc(ofConnections, func(name string) bool { return strings.HasPrefix(fields[0], name) }) {
			continue
		}
		used, err := strconv.ParseFloat(fields[1], 64)
		size, wrong := strconv.ParseFloat(fields[3], 64)
		if err := errors.Join(err, wrong); err != nil {
			return 0, fmt.Errorf("read the kernel's memory: %w", err)
		}
		total += used * size
	}
	if total == 0 {
		return 0, errors.New("read the kernel's memory: /proc/slabinfo has no sockets")
	}
	return total, nil
}

// ownMemory is that of the contender's processes alone, and of those that they have started, in bytes.
func (r *round) ownMemory() (total float64) {
	for _, p := range r.ownProcesses() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.id))
		if err != nil {
			continue // it has ended
		}
		for line := range bytes.Lines(text) {
			if value, found := bytes.CutPrefix(line, []byte("RssAnon:")); found {
				kb, err := strconv.ParseFloat(strings.Fields(string(value))[0], 64)
				script.Checkf(err, "read the memory of process %d", p.id)
				total += kb * 1024
			}
		}
	}
	return total
}
