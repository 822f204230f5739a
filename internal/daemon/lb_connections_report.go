package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

var (
	tableEntries   = prometheus.NewDesc("ballast_table_entries", "Entries of a service's connection table by state, as the last sweep left them (free: now).", []string{"service", "state"}, nil)
	tableCapacity  = prometheus.NewDesc("ballast_table_capacity", "Connections that a service's table can hold.", []string{"service"}, nil)
	tableEnded     = prometheus.NewDesc("ballast_table_ended_total", "Connections that left a service's table, by reason.", []string{"service", "reason"}, nil)
	tableSweeps    = prometheus.NewDesc("ballast_table_sweeps_total", "Whole rounds of the sweep through a service's table.", []string{"service"}, nil)
	tableSuspects  = prometheus.NewDesc("ballast_table_suspects", "Clients and networks of a service that visit its scrubber.", []string{"service"}, nil)
	flowLogRecords = prometheus.NewDesc("ballast_flow_log_records_total", "Ended connections written to the flow log.", nil, nil)
	flowLogDropped = prometheus.NewDesc("ballast_flow_log_dropped_total", "Ended connections that are not in the flow log, by where they were lost.", []string{"where"}, nil)
)

// tableCollector tells of connection tables when Prometheus asks.
type tableCollector struct{ lb *LB }

func (c tableCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{tableEntries, tableCapacity, tableEnded, tableSweeps, tableSuspects, flowLogRecords, flowLogDropped} {
		out <- desc
	}
}

func (c tableCollector) Collect(out chan<- prometheus.Metric) {
	c.lb.mu.Lock()
	defer c.lb.mu.Unlock()
	tables := &c.lb.connections
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	for _, t := range c.lb.tablesNow(time.Now()) {
		counts, occupancy := t.counts, c.lb.path.Connections().Occupancy(t.table)
		gauge(tableCapacity, float64(occupancy.Entries), t.service)
		gauge(tableEntries, float64(occupancy.Free), t.service, "free")
		for state, entries := range counts.tally {
			if state := conntable.State(state); state != conntable.StateNone {
				gauge(tableEntries, float64(entries), t.service, state.String())
			}
		}
		for reason, ended := range counts.ended {
			counter(tableEnded, ended, t.service, connections.EndReason(reason).String())
		}
		counter(tableEnded, counts.reclaimed.Load(), t.service, "reclaimed")
		counter(tableSweeps, counts.rounds, t.service)
		suspects := 0
		if t.suspects != nil {
			suspects = len(t.suspects.networks)
		}
		gauge(tableSuspects, float64(suspects), t.service)
	}
	if log := tables.log; log != nil {
		counter(flowLogRecords, log.written.Load())
		for i, where := range [dropReasons]string{dropQueue: "queue", dropFile: "file", dropGone: "service_gone"} {
			counter(flowLogDropped, log.dropped[i].Load(), where)
		}
		if lost, err := c.lb.path.ReclaimedLost(); err == nil {
			counter(flowLogDropped, lost, "datapath")
		}
	}
}
