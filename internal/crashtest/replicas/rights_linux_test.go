package replicas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	rbacPath = "/apis/rbac.authorization.k8s.io/v1/namespaces/model"
	granted  = "granted"
	denied   = "denied"
	// patientTimeout is the timeout of requests to a replica that may be paused. They stay in flight meanwhile.
	patientTimeout = 25 * time.Second
	// maxPending is the number of requests in flight to each replica.
	maxPending = 40
)

// subject is a user whose permission to read changes.
type subject struct {
	name string
	apis []*api // of all replicas, with the user's certificate
	rule *register
}

// rights is an administrator who grants and revokes a permission, and the user who uses it.
type rights struct {
	cluster *cluster
	apis    []*api // of the administrator
	caKey   []byte
	round   int
	tally   *tally
	random  *rand.Rand
	zero    time.Time

	mu       sync.Mutex
	subjects []*subject // the last one is in use
}

// newSubject replaces the user. No permission of the new user is in flight.
func (r *rights) newSubject() error {
	name := fmt.Sprintf("user-%d-%d", r.round, len(r.subjects))
	certificate, err := r.cluster.newUser(r.caKey, name)
	if err != nil {
		return err
	}
	s := &subject{name: name, rule: newRegister("permission of "+name, r.zero, denied)}
	for _, a := range r.apis {
		s.apis = append(s.apis, r.cluster.newAPI(a.replica, a.url, certificate, 2*patientTimeout))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subjects = append(r.subjects, s)
	return nil
}

func (r *rights) current() *subject {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.subjects[len(r.subjects)-1]
}

// run grants and revokes the permission until ctx is done.
func (r *rights) run(ctx context.Context) {
	for cycle := 0; ctx.Err() == nil; cycle++ {
		if len(r.subjects) == 0 || !r.cycle(ctx, r.current(), cycle) {
			if err := r.newSubject(); err != nil {
				r.tally.violation("create a certificate: %v", err)
				return
			}
		}
	}
}

// cycle grants the permission and revokes it. It returns false if the outcome of the grant is unknown. A new user is
// necessary then, because the grant may be executed after the revocation.
func (r *rights) cycle(ctx context.Context, s *subject, n int) bool {
	name := fmt.Sprintf("%s-%d", s.name, n)
	role := fmt.Sprintf(`{"metadata":{"name":%q},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`,
		name)
	binding := fmt.Sprintf(`{"metadata":{"name":%q},"subjects":[{"kind":"User","name":%q}],`+
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":%q}}`, name, s.name, name)
	if !r.write("POST", rbacPath+"/roles", role).applied() {
		return false
	}
	done := s.rule.begin(granted)
	answer := r.write("POST", rbacPath+"/rolebindings", binding)
	if done(answer.applied()); !answer.applied() {
		return false
	}
	wait(ctx, time.Duration(50+r.random.IntN(500))*time.Millisecond)
	paths := []string{rbacPath + "/rolebindings/" + name, rbacPath + "/roles/" + name}
	if r.random.IntN(2) == 0 {
		paths[0], paths[1] = paths[1], paths[0]
	}
	for began := time.Now(); ; {
		done := s.rule.begin(denied)
		answer := r.write("DELETE", paths[0], "")
		if done(answer.applied()); answer.applied() || answer.code == 404 {
			break
		}
		if !answer.transient() || time.Since(began) > startTimeout {
			r.tally.violation("cannot revoke a permission: %v", answer)
			return false
		}
	}
	r.tally.count("permissions revoked", 1)
	wait(ctx, time.Duration(100+r.random.IntN(1000))*time.Millisecond)
	r.write("DELETE", paths[1], "")
	return true
}

// write sends a write to a random replica.
func (r *rights) write(method, path, body string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 2*attemptTimeout)
	defer cancel()
	a := r.apis[r.random.IntN(len(r.apis))].do(ctx, method, path, "", []byte(body))
	r.tally.operation(method+" of a role or binding", a)
	if a.rejected() && a.code != 404 && a.code != 429 {
		r.tally.violation("%s %s: %v", method, path, a)
	}
	return a
}

// read reads as the user until ctx is done, through one replica. It does not wait for responses, so that requests
// arrive while the replica is paused.
func (r *rights) read(ctx context.Context, replica int) {
	var pending sync.WaitGroup
	defer pending.Wait()
	slots := make(chan struct{}, maxPending)
	for n := 0; wait(ctx, 30*time.Millisecond); n++ {
		r.mu.Lock()
		none := len(r.subjects) == 0
		r.mu.Unlock()
		if none {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		pending.Go(func() {
			defer func() { <-slots }()
			r.readOnce(r.current(), replica, n)
		})
	}
}

func (r *rights) readOnce(s *subject, replica, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), patientTimeout)
	defer cancel()
	path := collection + "/target"
	if n%3 > 0 {
		path += "?resourceVersion=0" // does not need etcd
	}
	call := s.rule.now()
	answer := s.apis[replica].do(ctx, "GET", path, "", nil)
	switch {
	case answer.code == 200:
		s.rule.observe(replica, granted, false, call)
	case answer.code == 403:
		s.rule.observe(replica, denied, false, call)
	case !answer.transient():
		r.tally.violation("replica %d answers GET %s of %s with %v", replica, path, s.name, answer)
	}
	r.tally.operation("get of the user", answer)
}
