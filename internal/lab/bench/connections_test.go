package bench

import "testing"

func TestAConnectionCostsTheSumOfItsPackets(t *testing.T) {
	cells := []Cell{{Program: "session-syn", NetMinNS: 300}, {Program: "session-ack", NetMinNS: 100}, {Program: "session-hello", NetMinNS: 700},
		{Program: "session-cookie", NetMinNS: 30}, {Program: "syn-rr", NetMinNS: 20}, {Program: "cookie", NetMinNS: 25}, {Program: "hash", NetMinNS: 26}}
	for i := range cells {
		cells[i].Flows = 1000
	}
	all := Connections(cells, 1000)
	if len(all) != 5 || all[0] != (Connection{5, 1160, 120, 130}) || all[1] != (Connection{10, 1310, 245, 260}) {
		t.Errorf("%+v", all)
	}
	if got := Connections(cells[1:], 1000); got != nil {
		t.Errorf("without all cells: %+v", got)
	}
	if got := Connections(cells, 1); got != nil {
		t.Errorf("of another number of flows: %+v", got)
	}
}
