package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	apiServices = 100
	rounds      = 20
	roundTakes  = time.Second
	readers     = 4
)

// side is one of two servers that are compared.
type side struct {
	name, host string
	client     *http.Client
	pid        int
}

func newSide(name, kubeconfig string, pid int) *side {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		log.Fatal(err)
	}
	return &side{name, config.Host, client, pid}
}

func (s *side) send(method, path, accept, body string) []byte {
	r, err := http.NewRequest(method, s.host+path, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("Content-Type", jsonType)
	r.Header.Set("Accept", accept)
	resp, err := s.client.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 && resp.StatusCode != http.StatusConflict {
		log.Fatalf("%s %s: %s %v", method, path, text, err)
	}
	return text
}

// mute returns a port where connections are accepted and nothing is said, and dead one where none is.
func mute() int {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		var kept []net.Conn // one that nobody has any longer is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				log.Fatal(err)
			}
			kept = append(kept, conn)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func dead() int {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// register makes the APIServices, the first of them at the ports given.
func (s *side) register(backend int, first ...int) {
	s.send("POST", core+"services", jsonType, `{"metadata":{"name":"backend"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	s.send("POST", core+"configmaps", jsonType, `{"metadata":{"name":"one"},"data":{"a":"b"}}`)
	for i := range apiServices {
		port := backend
		if i < len(first) {
			port = first[i]
		}
		s.send("POST", "/apis/apiregistration.k8s.io/v1/apiservices", jsonType, fmt.Sprintf(`{"metadata":{"name":"v1.g%d.example.com"},"spec":{"group":"g%[1]d.example.com","version":"v1",
			"groupPriorityMinimum":1000,"versionPriority":15,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"backend","port":%d}}}`, i, port))
	}
	for bytes.Count(s.send("GET", "/apis/apiregistration.k8s.io/v1/apiservices", jsonType, ""), []byte(`"reason":"Passed"`)) < apiServices-len(first) {
		<-time.After(100 * time.Millisecond)
	}
}

// read reads a path for a while, and returns how often, the processor time that took, and how long each time.
func (s *side) read(path, accept string) (spent time.Duration, latencies []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	before, end := processorTime(s.pid), time.Now().Add(roundTakes)
	for range readers {
		all.Go(func() {
			var mine []time.Duration
			for began := time.Now(); began.Before(end); began = time.Now() {
				s.send("GET", path, accept, "")
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, mine...)
		})
	}
	all.Wait()
	return processorTime(s.pid) - before, latencies
}

// compare reads by turns from two servers, of which only the first has APIServices that do not answer.
func compare(some, none *side, backend int) {
	var broken []int
	for range 5 {
		broken = append(broken, dead(), mute())
	}
	none.register(backend)
	some.register(backend, broken...)
	sides := []*side{some, none}
	for _, what := range [][3]string{
		{"discovery", "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{"openapi index", "/openapi/v3", jsonType},
		{"an object", core + "configmaps/one", jsonType},
		{"a list", "/api/v1/namespaces", jsonType},
	} {
		spent, latencies := map[*side]time.Duration{}, map[*side][]time.Duration{}
		for range rounds {
			slices.Reverse(sides)
			for _, s := range sides {
				took, each := s.read(what[1], what[2])
				spent[s] += took
				latencies[s] = append(latencies[s], each...)
			}
		}
		for _, s := range []*side{some, none} {
			slices.Sort(latencies[s])
			n := len(latencies[s])
			fmt.Printf("%-14s %-16s %8d times %8.4f ms of processor time each, p99 %v\n", what[0], s.name, n,
				spent[s].Seconds()*1000/float64(n), latencies[s][n*99/100])
		}
	}
	before := []time.Duration{processorTime(some.pid), processorTime(none.pid)}
	<-time.After(time.Minute)
	for i, s := range []*side{some, none} {
		fmt.Printf("idle           %-16s %v of processor time a minute\n", s.name, processorTime(s.pid)-before[i])
	}
}
