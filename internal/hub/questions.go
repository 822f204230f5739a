// The topic of questions about packets, made-up ones and those that come, which load balancers answer.
package hub

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// Implementation constants of questions.
const (
	questionTime  = 15 * time.Second // that a load balancer may take: at first its kernel verifies a program
	questionsMost = 8                // at a time; what people ask one after another
	answerList    = 256              // elements that are kept of a list
)

// questions are those that wait for load balancers, and those that wait for their answers. An answer counts if its node was asked, once.
type questions struct {
	of   map[*subscriber][]*ballastv1.Question // load balancers: that they have to be sent
	open map[uint64]*openQuestion
}

type openQuestion struct {
	asked   map[*subscriber]string // who has not answered -> what is said of it then
	answers []*ballastv1.Explained
	done    chan struct{}
}

func newQuestions() questions {
	return questions{of: map[*subscriber][]*ballastv1.Question{}, open: map[uint64]*openQuestion{}}
}

func (q *questions) join(s *subscriber) {
	if s.isLB() {
		q.of[s] = nil
	}
}

func (q *questions) leave(s *subscriber) {
	delete(q.of, s)
	for _, open := range q.open {
		open.take(s, silent("its connection to this controller ended before it answered"))
	}
}

func (q *questions) next(s *subscriber) *frame {
	waiting := q.of[s]
	if len(waiting) == 0 {
		return nil
	}
	q.of[s] = waiting[1:]
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Question{Question: waiting[0]}})
}

// ask asks all load balancers that are connected. Numbers are drawn: an answer to an earlier controller's question is none to this one's.
func (q *questions) ask(question *ballastv1.Question) (open *openQuestion) {
	question.Number = rand.Uint64()
	open = &openQuestion{asked: map[*subscriber]string{}, done: make(chan struct{})}
	for s := range q.of {
		open.asked[s] = "does not answer within " + questionTime.String() + ": is it of an older version?"
		q.of[s] = append(q.of[s], question)
		s.wakeUp()
	}
	if len(open.asked) == 0 {
		close(open.done)
	}
	q.open[question.Number] = open
	return open
}

// take takes what is said of or by a load balancer that was asked.
func (o *openQuestion) take(s *subscriber, answer *ballastv1.Explained) {
	if _, waits := o.asked[s]; !waits || answer.Explanation == nil && answer.Sample == nil {
		return
	}
	delete(o.asked, s)
	if answer.Explanation == nil {
		answer.Explanation = &ballastv1.Explanation{}
	}
	answer.Explanation.Node = s.identity.Name // whatever it says
	o.answers = append(o.answers, answer)
	if len(o.asked) == 0 {
		close(o.done)
	}
}

// give ends a question: those that have not answered are named.
func (q *questions) give(number uint64) []*ballastv1.Explained {
	open := q.open[number]
	delete(q.open, number)
	for s, why := range open.asked {
		q.of[s] = slices.DeleteFunc(q.of[s], func(waiting *ballastv1.Question) bool { return waiting.Number == number })
		open.take(s, silent(why))
	}
	return open.answers
}

// silent is the answer of a load balancer that gives none.
func silent(why string) *ballastv1.Explained {
	return &ballastv1.Explained{Explanation: &ballastv1.Explanation{Error: why}}
}

// explained takes the answer of a load balancer.
func (t *Topics) explained(s *subscriber, answer *ballastv1.Explained) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if open := t.questions.open[answer.Number]; open != nil {
		open.take(s, &ballastv1.Explained{Explanation: legibleExplanation(answer.Explanation), Sample: legibleSample(answer.Sample)})
	}
}

// Explain asks all load balancers that are connected what would become of a packet, and waits for their answers.
func (n *Nodes) Explain(ctx context.Context, packet *ballastv1.MadeUpPacket) (list []*ballastv1.Explanation, err error) {
	answers, err := n.topics.askAll(ctx, &ballastv1.Question{Packet: packet})
	for _, answer := range answers {
		list = append(list, answer.Explanation)
	}
	return list, err
}

// Sample asks all load balancers that are connected whose packets are most. Explanation names the node and, without a sample, says why there is none.
func (n *Nodes) Sample(ctx context.Context) ([]*ballastv1.Explained, error) {
	answers, err := n.topics.askAll(ctx, &ballastv1.Question{Sample: true})
	for _, answer := range answers {
		if answer.Sample == nil && answer.Explanation.Error == "" {
			answer.Explanation.Error = "it answered without a sample"
		}
	}
	return answers, err
}

// askAll asks all load balancers that are connected, and waits for their answers.
func (t *Topics) askAll(ctx context.Context, question *ballastv1.Question) ([]*ballastv1.Explained, error) {
	t.mutex.Lock()
	if len(t.questions.open) >= questionsMost {
		t.mutex.Unlock()
		return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("others ask about packets just now: ask again in a few seconds"))
	}
	open := t.questions.ask(question)
	t.mutex.Unlock()
	patience := time.NewTimer(questionTime)
	defer patience.Stop()
	select {
	case <-open.done:
	case <-patience.C:
	case <-ctx.Done():
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.questions.give(question.Number), ctx.Err()
}

// legibleExplanation shortens what a node says, and keeps it from doing anything to a terminal; nil: it says nothing.
func legibleExplanation(e *ballastv1.Explanation) *ballastv1.Explanation {
	if e == nil {
		return nil
	}
	for _, text := range []*string{&e.Error, &e.Interface, &e.Service, &e.Verdict, &e.Rung, &e.Meaning, &e.Action, &e.Path} {
		*text = legible(*text)
	}
	for _, list := range []*[]string{&e.Stops, &e.Headers, &e.Notes} {
		*list = (*list)[:min(len(*list), answerList)]
		for i, text := range *list {
			(*list)[i] = legible(text)
		}
	}
	e.Candidates = e.Candidates[:min(len(e.Candidates), answerList)]
	for _, c := range slices.Concat(e.Candidates, []*ballastv1.Chosen{e.Server}) {
		if c != nil {
			c.Name, c.Address = legible(c.Name), legible(c.Address)
		}
	}
	return e
}

// legibleSample does the same of a sample. What cannot be is 0.
func legibleSample(s *ballastv1.Sample) *ballastv1.Sample {
	if s == nil {
		return nil
	}
	within := func(value *float64, most float64) {
		if !(*value >= 0 && *value <= most) {
			*value = 0
		}
	}
	within(&s.Seconds, questionTime.Seconds())
	for _, list := range []*[]*ballastv1.SampleShare{&s.Clients, &s.Servers} {
		*list = (*list)[:min(len(*list), answerList)]
		for _, share := range *list {
			share.Name = legible(share.Name)
			within(&share.Share, 1)
			within(&share.Error, 1)
		}
	}
	return s
}
