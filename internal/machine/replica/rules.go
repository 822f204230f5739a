package replica

import "github.com/ballast-lb/ballast/internal/algo/ring"

// Rules are what makes the protocol safe. All are on in DefaultRules; each can be switched off to show what it is for. Those marked
// "ours" are not in the paper.
type Rules struct {
	CheckView            bool // ours: WhoOwns and Write of another chain of the key than the node knows change nothing, and Copy of another view is dropped
	AskAgain             bool // ours: WhoOwns and Write of an older chain are asked again, of the newer one, for the same forwarder
	SendBack             bool // ours: those of a newer chain are answered with what the forwarder knew, which it does not note anew
	LimitHops            bool // ours: messages that go in circles end
	CheckHead            bool // a Write that comes from no chain node is dropped everywhere but at the head (figure 6, line 2)
	CheckMembers         bool // a Write to or from a node outside the chain is dropped (figure 6, line 3)
	KeepFirst            bool // a Write never changes an entry; what the entry says goes on instead (figure 6, line 4)
	CacheableAtTail      bool // entries are cacheable at the tail only (4.3.1)
	AnswerCacheable      bool // ours: who is not the tail answers WhoOwns from cacheable entries only
	TailAnswersCacheable bool // so does the tail
	RefreshKeepsOwner    bool // ours: a refresh carries the owner that is known, not a new proposal
	RenewByOwns          bool // ours: a cached entry is as young as the last Owns, not the last question
	ExpireInOrder        bool // ours: caches expire first, then the tail, the head last
	HoldExpiry           bool // ours: chain entries do not age between a new view and its sync
	NeverEvict           bool // ours: a full table takes no entry and drops what wanted one; none makes room for another
	ForgetOnLeaving      bool // ours: entries of chains that the node is not in any more are given up, and all in another life
	SyncInOrder          bool // ours: behind the first common node, a copy goes on to the next when the one before has it
	ShareCopies          bool // all common nodes of a chain copy, not the first alone (4.3.2, optimizing step 1)
	EveryShare           bool // a chain is synced when all of its common nodes have copied their shares, not the first of them alone
	SyncOverrides        bool // what the first common node says replaces what others have (4.3.2, step 2)
	SyncSecondRound      bool // what nodes before it have and it has not is made the same in them, too (4.3.2, steps 3 to 5)
	SyncCacheableAtTail  bool // ours: what a sync brings is cacheable at the tail only
	CountAcks            bool // ours: an ack counts for its message, a second one of the same message for nothing
	StopCancelled        bool // a sync that is cancelled ends (4.3.3)
	WaitForViews         bool // syncs begin when all nodes have the view (4.3.3)
	CutAtKey             bool // ours: chains are in the order of distance from the key; see package ring
	MoreNodesThanChain   bool // ours: no planned change leaves as few nodes as a chain has, or less
	KeepCommonNode       bool // no planned change takes the last common node from any chain (4.2, assumptions)
}

// DefaultRules returns all rules, switched on.
func DefaultRules() Rules {
	return Rules{
		CheckView: true, AskAgain: true, SendBack: true, LimitHops: true, CheckHead: true, CheckMembers: true, KeepFirst: true, CacheableAtTail: true,
		AnswerCacheable: true, TailAnswersCacheable: true, RefreshKeepsOwner: true, RenewByOwns: true, ExpireInOrder: true,
		HoldExpiry: true, NeverEvict: true, ForgetOnLeaving: true, SyncInOrder: true, ShareCopies: true, EveryShare: true, SyncOverrides: true, SyncSecondRound: true,
		SyncCacheableAtTail: true, CountAcks: true, StopCancelled: true, WaitForViews: true, CutAtKey: true,
		MoreNodesThanChain: true, KeepCommonNode: true,
	}
}

// Config is the same for all nodes and the controller of a fleet.
type Config struct {
	Chain    int   // L, nodes that keep an entry; >= 1
	HopLimit uint8 // of a message between nodes

	// Periods are deletion intervals: half a keep-alive interval or less (4.3.1). To survive k lost refreshes, Timeout must be k+1
	// keep-alive intervals.
	Timeout uint32 // periods without a packet after which caches expire
	Stagger uint32 // periods that each step from the cache to the head adds; >= 2, because nodes' periods are not in step

	Entries int // what a node's table holds; 0: any number
	Cached  int // what a node's cache holds; 0: any number

	CopyEntries int // of one Copy at most
	CopyWindow  int // parts of a range that are on their way at once

	// DirectToHead makes forwarders send Write to the head at once instead of WhoOwns to the tail, with packets that begin a connection
	// and those that say that one lives: they take a hop less.
	DirectToHead bool

	// EvenTo is the imbalance of the ring above which the controller moves nodes once all is synced; 0: never. Nothing is moved when
	// chains have one node, or all.
	EvenTo float64

	Rules Rules
}

// DefaultConfig returns what suits a keep-alive interval of two periods of which two refreshes may be lost.
func DefaultConfig(chain int) Config {
	return Config{Chain: chain, HopLimit: uint8(chain) + 4, Timeout: 6, Stagger: 2, CopyEntries: 512, CopyWindow: 8, EvenTo: 1.05, Rules: DefaultRules()}
}

func (c *Config) chains() ring.Chains {
	return ring.Chains{Length: c.Chain, TailAfter: !c.Rules.CutAtKey, Share: c.Rules.ShareCopies}
}
