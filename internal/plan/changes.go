package plan

import "github.com/ballast-lb/ballast/internal/algo/history"

// A Change is one step on the tables. Steps are carried out in order; each is atomic for packets where the rule of the
// package says so (the Point* and Set*/Delete* changes).
type Change interface{ change() }

// WriteServer fills a row that no packet can see yet.
type WriteServer struct {
	Row   uint32
	Value ServerRow
}

// WriteService fills a row that no packet can see yet.
type WriteService struct {
	Row   uint32
	Value ServiceRow
}

// WriteSlots fills a range that no packet can see yet.
type WriteSlots struct {
	Base  uint32
	Slots []history.Column
}

// WriteRounds fills a range that no packet can see yet.
type WriteRounds struct {
	Base  uint32
	Words []uint64
}

// WriteQUIC fills a group of configs of connection ids that no packet can see yet.
type WriteQUIC struct {
	Group   uint32
	Configs *QUICConfigs
}

// WriteSession fills a config of how connections begin that no packet can see yet.
type WriteSession struct {
	Group  uint32
	Config *SessionConfig
}

// WriteReplicas fills a row that no packet can see yet; PointReplicas makes packets go by it. 0: by none.
type (
	WriteReplicas struct {
		Row   uint32
		Value *ReplicaConfig
	}
	PointReplicas struct{ Row uint32 }
)

// SetTurn changes one word of a range that packets draw from.
type SetTurn struct {
	Index uint32
	Word  uint64
}

// PointID makes index (ids base + id) name a server row; 0: no server.
type PointID struct{ Index, Row uint32 }

// PointService makes a service number name a service row; 0: none.
type PointService struct{ Number, Row uint32 }

// SetVIP and DeleteVIP change what a destination leads to: the number of a service, and from bit 16 on the server that subflows join there.
type (
	SetVIP struct {
		Key    VIPKey
		Number uint32
	}
	DeleteVIP struct{ Key VIPKey }
)

// SetReturn and DeleteReturn change whose answers are recognised (return: through).
type (
	SetReturn struct {
		Key   ReturnKey
		Value uint64
	}
	DeleteReturn struct{ Key ReturnKey }
)

// ClearCounter zeroes what was counted, loaded and learned under an index that a new server takes over.
type ClearCounter struct{ Index uint32 }

// RetireCounter keeps what was counted for a service under the index of a server that no new packet finds there.
type RetireCounter struct{ Service, Index uint32 }

// CountOpen makes the estimate of open connections under an index what was counted there: connections less closed ones. Policies that
// need no estimate do not keep it.
type CountOpen struct{ Index uint32 }

// ClearService zeroes the verdict counters of a number that a new service takes over.
type ClearService struct{ Number uint32 }

// ClearTable makes a range of blocks of connections, which no packet can see, an empty table: all indices free but those of 0.
type ClearTable struct {
	Base, Blocks uint32
	IndexBits    uint8
}

// Grace waits until every packet that began before has left the data path.
type Grace struct{}

func (WriteServer) change()   {}
func (WriteService) change()  {}
func (WriteSlots) change()    {}
func (WriteRounds) change()   {}
func (WriteQUIC) change()     {}
func (WriteSession) change()  {}
func (WriteReplicas) change() {}
func (PointReplicas) change() {}
func (SetTurn) change()       {}
func (PointID) change()       {}
func (PointService) change()  {}
func (SetVIP) change()        {}
func (DeleteVIP) change()     {}
func (SetReturn) change()     {}
func (DeleteReturn) change()  {}
func (ClearCounter) change()  {}
func (RetireCounter) change() {}
func (CountOpen) change()     {}
func (ClearService) change()  {}
func (ClearTable) change()    {}
func (Grace) change()         {}
