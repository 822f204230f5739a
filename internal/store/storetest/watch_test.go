package storetest

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/store"
)

func TestAWatchOfWhatIsForgottenEnds(t *testing.T) {
	s := New()
	defer s.Close()
	for revision := range uint64(maxHistory + 1) {
		if _, err := s.Commit(t.Context(), []store.Document{{Key: "a", Value: []byte{}, Revision: revision}}); err != nil {
			t.Fatal(err)
		}
	}
	if batch, ok := <-s.Watch(t.Context(), 0); ok {
		t.Errorf("the forgotten came: %+v", batch)
	}
	if batch := <-s.Watch(t.Context(), 1); batch.Revision != 2 {
		t.Errorf("the first that is known came as %+v", batch)
	}
}
