package acceptance

import "testing"

// The limit rises below the band and falls above it, as the paper compares parts: here in exact hundredths.
func TestBoundsAreThoseOfTheRatio(t *testing.T) {
	for window := uint16(1); window <= 300; window++ {
		for margin := uint8(0); margin <= 50; margin++ {
			low, high := Bounds(window, margin)
			for accepted := uint16(0); accepted <= window; accepted++ {
				part, half := 100*int(accepted), 50*int(window)
				rises, falls := part < half-int(margin)*int(window), part > half+int(margin)*int(window)
				if (accepted < low) != rises || (accepted > high) != falls {
					t.Fatalf("window %d, margin %d: %d accepted: bounds %d and %d", window, margin, accepted, low, high)
				}
			}
		}
	}
}

func TestLimitFollowsTheLoad(t *testing.T) {
	d := Dynamic{Window: 50, Limit: 1}
	d.Low, d.High = Bounds(50, 10)
	for range 50 * 20 { // the load is what it is: nothing is accepted before the limit has passed it
		d.Accept(9)
	}
	if d.Limit != 9 && d.Limit != 10 {
		t.Errorf("the limit is %d with a load of 9", d.Limit)
	}
	for range 50 * 20 {
		d.Accept(0)
	}
	if d.Limit > 1 {
		t.Errorf("the limit is %d with a load of 0", d.Limit)
	}
}

// Limits stay within the loads that there are.
func TestLimitGoesByOneOrAQuarterOfTheWay(t *testing.T) {
	const most = ^uint32(0)
	for _, c := range []struct{ limit, load, want uint32 }{
		{10, 10, 11}, {10, 13, 11}, {10, 17, 11}, {10, 18, 12}, {10, 1010, 260}, {most, most, most}, {most - 1, most, most}, {0, most, most / 4}, // nothing is accepted
		{10, 9, 9}, {10, 3, 9}, {10, 2, 8}, {1000, 0, 750}, {1, 0, 0}, {0, 0, 1}, // 1: below all loads again
	} {
		d := Dynamic{Window: 1, Low: 1, High: 0, Limit: c.limit}
		if d.Accept(c.load); d.Limit != c.want {
			t.Errorf("a limit of %d with a load of %d becomes %d, want %d", c.limit, c.load, d.Limit, c.want)
		}
	}
	d := Dynamic{Window: 50, Limit: 1}
	d.Low, d.High = Bounds(50, 10)
	for range 50 * 30 {
		d.Accept(5000)
	}
	if d.Limit < 4990 || d.Limit > 5001 {
		t.Errorf("the limit is %d after 30 windows with a load of 5000", d.Limit)
	}
}

func TestHalfOfTheAttemptsAreAccepted(t *testing.T) {
	d := Dynamic{Window: 50, Limit: 1}
	d.Low, d.High = Bounds(50, 10)
	accepted, load := 0, uint32(0)
	const attempts = 50 * 400
	for i := range attempts { // the load moves through 0..19, evenly
		load = uint32(i*7) % 20
		if d.Accept(load) && i >= attempts/2 {
			accepted++
		}
	}
	if part := float64(accepted) / (attempts / 2); part < 0.4 || part > 0.6 {
		t.Errorf("%.2f were accepted", part)
	}
}
