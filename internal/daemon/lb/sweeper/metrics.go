// Prometheus metrics of connection tables and the flow log.
package sweeper

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

var (
	tableEntries   = prometheus.NewDesc("ballast_table_entries", "Entries of a service's connection table by state (free, new, open, finished, reset), as of the last sweep; free: now.", []string{"service", "state"}, nil)
	tableCapacity  = prometheus.NewDesc("ballast_table_capacity", "Connections that a service's table can hold.", []string{"service"}, nil)
	tableEnded     = prometheus.NewDesc("ballast_table_ended_total", "Connections that left a service's table, by reason as in the flow log; with --flow-log also reclaimed.", []string{"service", "reason"}, nil)
	tableSweeps    = prometheus.NewDesc("ballast_table_sweeps_total", "Whole rounds of the sweep through a service's table.", []string{"service"}, nil)
	tableSuspects  = prometheus.NewDesc("ballast_table_suspects", "Clients and networks of a service that visit its scrubber.", []string{"service"}, nil)
	flowLogRecords = prometheus.NewDesc("ballast_flow_log_records_total", "Ended connections written to the flow log.", nil, nil)
	flowLogDropped = prometheus.NewDesc("ballast_flow_log_dropped_total", "Ended connections missing in the flow log, by where they were lost: queue (the writer was too slow), file (not writable), datapath (the ring buffer was full), service_gone.", []string{"where"}, nil)
)

// Describe is of prometheus.Collector.
func (k *Sweeper) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{tableEntries, tableCapacity, tableEnded, tableSweeps, tableSuspects, flowLogRecords, flowLogDropped} {
		out <- desc
	}
}

// Collect is of prometheus.Collector.
func (k *Sweeper) Collect(out chan<- prometheus.Metric) {
	k.hold(func(h held) {
		for _, t := range h.tables {
			h.collect(t, out)
		}
	})
	if k.Flows == nil {
		return
	}
	written, dropped := k.Flows.Counts()
	if lost, err := k.path.ReclaimedLost(); err == nil {
		dropped["datapath"] = lost
	}
	counter(out, flowLogRecords, written)
	for where, lost := range dropped {
		counter(out, flowLogDropped, lost, where)
	}
}

func gauge(out chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

func counter(out chan<- prometheus.Metric, desc *prometheus.Desc, value uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
}

func (h held) collect(t *table, out chan<- prometheus.Metric) {
	counts, occupancy := t.counts, h.path.Connections().Occupancy(t.Table)
	gauge(out, tableCapacity, float64(occupancy.Entries), t.service)
	gauge(out, tableEntries, float64(occupancy.Free), t.service, "free")
	for state, entries := range counts.tally {
		if state := conntable.State(state); state != conntable.StateNone {
			gauge(out, tableEntries, float64(entries), t.service, state.String())
		}
	}
	for reason, ended := range counts.ended {
		counter(out, tableEnded, ended, t.service, connections.EndReason(reason).String())
	}
	counter(out, tableEnded, counts.reclaimed.Load(), t.service, "reclaimed")
	counter(out, tableSweeps, counts.rounds, t.service)
	suspects := 0
	if t.suspects != nil {
		suspects = len(t.suspects.networks)
	}
	gauge(out, tableSuspects, float64(suspects), t.service)
}
