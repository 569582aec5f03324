package flowcontrol

import (
	"math"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/shufflesharding"
)

const (
	// lendEvery is how often levels lend each other what they do not need, and smoothing how much the demand of before then still counts:
	// half of it after five minutes. Both are upstream's.
	lendEvery = 10 * time.Second
	smoothing = 0.977
	// least is what a level without demand counts for.
	least = 0.001
	// defaultShares are those of a level that does not say.
	defaultShares = 30
)

// configure makes the levels as their objects say, and divides the seats of the server among them.
func (x *Controller) configure(now time.Time) {
	all := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	for _, c := range bootstrap.MandatoryPriorityLevelConfigurations {
		all[c.Name] = c
	}
	for key, c := range x.configs {
		all[strings.TrimPrefix(key, priorityLevels)] = c
	}
	sum := 0.0
	for _, c := range all {
		shares, _, _ := division(c)
		sum += shares
	}
	levels := map[string]*level{}
	for name, c := range all {
		l := x.levels[name]
		if l == nil || l.uid != string(c.UID) { // another one of the name: whoever is in the old one stays there
			l = &level{name: name, uid: string(c.UID), flows: map[string]*counts{}, noted: now, limit: -1}
		}
		l.configure(c, sum, float64(x.MaxReads+x.MaxWrites))
		levels[name] = l
	}
	for name, l := range x.levels {
		if levels[name] != l {
			x.retire(l)
		}
	}
	x.levels = levels
	x.lend(now)
}

// division is what shares of the seats a level has, how much of that in percent it may lend and how much borrow; -1: without bound.
func division(c *flowcontrolv1.PriorityLevelConfiguration) (shares, lendable, borrowing float64) {
	valueOr := func(p *int32, fallback float64) float64 {
		if p == nil {
			return fallback
		}
		return float64(*p)
	}
	switch {
	case c.Spec.Limited != nil:
		l := c.Spec.Limited
		return valueOr(l.NominalConcurrencyShares, defaultShares), valueOr(l.LendablePercent, 0), valueOr(l.BorrowingLimitPercent, -1)
	case c.Spec.Exempt != nil:
		return valueOr(c.Spec.Exempt.NominalConcurrencyShares, 0), valueOr(c.Spec.Exempt.LendablePercent, 0), -1
	}
	return 0, 0, -1
}

func (l *level) configure(c *flowcontrolv1.PriorityLevelConfiguration, sum, total float64) {
	shares, lendable, borrowing := division(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exempt = c.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	nominal := 0.0
	if sum > 0 {
		nominal = math.Ceil(total * shares / sum)
	}
	l.nominal, l.lower, l.upper = int(nominal), int(nominal-math.Round(nominal*lendable/100)), int(nominal+total)
	if borrowing >= 0 {
		l.upper = int(nominal + math.Round(nominal*borrowing/100))
	}
	l.dealer = nil
	if c.Spec.Limited == nil || c.Spec.Limited.LimitResponse.Queuing == nil {
		return
	}
	queuing := c.Spec.Limited.LimitResponse.Queuing
	dealer, err := shufflesharding.NewDealer(int(queuing.Queues), int(queuing.HandSize))
	if err != nil {
		return // which validation lets nobody store
	}
	l.dealer, l.queueLength = dealer, int(queuing.QueueLengthLimit)
	for len(l.queues) < int(queuing.Queues) {
		l.queues = append(l.queues, &queue{})
	}
	l.queues = l.queues[:queuing.Queues] // whoever waits in the others is served as before
}

// lend divides the seats by what the levels have needed. None gets less than it has needed, as far as that is its own and there is
// enough after those that are exempt, nor less than it does not lend.
func (x *Controller) lend(now time.Time) {
	x.due.Store(now.Add(lendEvery).UnixNano())
	var claims []claim
	seats, needed := 0, 0
	for _, l := range x.levels {
		l.mu.Lock()
		peak, wants := l.settle(now)
		seats += l.nominal
		if l.exempt {
			l.limit = max(l.lower, peak)
			seats -= l.limit
		} else {
			own := max(l.lower, min(l.nominal, peak))
			needed += own
			claims = append(claims, claim{level: l, own: own, target: max(wants, float64(own), least)})
		}
		l.mu.Unlock()
	}
	if seats <= needed {
		for i := range claims {
			claims[i].own = claims[i].level.lower
		}
	}
	p := proportion(claims, float64(seats))
	for _, c := range claims {
		c.level.mu.Lock()
		c.level.limit = int(math.Round(c.at(p)))
		c.level.dispatch()
		c.level.mu.Unlock()
	}
}

// settle is what has been needed since the last time: at most, and smoothed.
func (l *level) settle(now time.Time) (peak int, wants float64) {
	l.note(now)
	if periods := l.demand.ElapsedSeconds / lendEvery.Seconds(); periods > 0 {
		average, deviation := l.demand.AvgAndStdDev()
		if math.IsNaN(deviation) {
			deviation = 0
		}
		keep := math.Pow(smoothing, periods)
		l.smoothed = max(average+deviation, keep*l.smoothed+(1-keep)*(average+deviation))
	}
	peak = l.peak
	l.demand, l.peak = fairqueuing.Moments{}, l.executing+l.queued
	return peak, l.smoothed
}

// claim is what a level is to get: what is its own in any case, of the rest a proportion of its target.
type claim struct {
	level  *level
	own    int
	target float64
}

// at is what it gets where everybody gets a proportion of their targets.
func (c *claim) at(proportion float64) float64 {
	return max(float64(c.own), min(float64(c.level.upper), c.target*proportion))
}

// proportion is the one by which the claims get all of the seats, or as many as they may have.
func proportion(claims []claim, seats float64) float64 {
	low, high := 0.0, 0.0
	for _, c := range claims {
		high = max(high, float64(c.level.upper)/c.target)
	}
	for range 64 {
		middle, sum := (low+high)/2, 0.0
		for i := range claims {
			sum += claims[i].at(middle)
		}
		if sum < seats {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}
