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
	apiServices   = 100
	rounds        = 20
	roundDuration = time.Second
	readers       = 4 // clients that read at the same time
)

// side is one of the two servers to compare.
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

// silentPort returns a port whose listener accepts connections and sends nothing.
func silentPort() int {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		var open []net.Conn // keeps the connections, so that the garbage collector does not close them
		for {
			conn, err := l.Accept()
			if err != nil {
				log.Fatal(err)
			}
			open = append(open, conn)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// closedPort returns a port without a listener.
func closedPort() int {
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// register creates the APIServices. The parameter first contains the ports of the first ones. All others have the port
// in the parameter backend.
func (s *side) register(backend int, first ...int) {
	s.send("POST", core+"services", jsonType,
		`{"metadata":{"name":"backend"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	s.send("POST", core+"configmaps", jsonType, `{"metadata":{"name":"one"},"data":{"a":"b"}}`)
	for i := range apiServices {
		port := backend
		if i < len(first) {
			port = first[i]
		}
		s.send("POST", "/apis/apiregistration.k8s.io/v1/apiservices", jsonType,
			fmt.Sprintf(`{"metadata":{"name":"v1.g%d.example.com"},"spec":{"group":"g%[1]d.example.com","version":"v1",
			"groupPriorityMinimum":1000,"versionPriority":15,"insecureSkipTLSVerify":true,
			"service":{"namespace":"default","name":"backend","port":%d}}}`, i, port))
	}
	for bytes.Count(s.send("GET", "/apis/apiregistration.k8s.io/v1/apiservices", jsonType, ""),
		[]byte(`"reason":"Passed"`)) < apiServices-len(first) {
		<-time.After(100 * time.Millisecond)
	}
}

// read reads a path for roundDuration. It returns the processor time of the server and the latency of each request.
func (s *side) read(path, accept string) (spent time.Duration, latencies []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	before, end := processorTime(s.pid), time.Now().Add(roundDuration)
	for range readers {
		all.Go(func() {
			var own []time.Duration
			for start := time.Now(); start.Before(end); start = time.Now() {
				s.send("GET", path, accept, "")
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
		})
	}
	all.Wait()
	return processorTime(s.pid) - before, latencies
}

// compare reads alternately from two servers. Only the server broken has APIServices whose backends are unreachable or
// silent.
func compare(broken, working *side, backend int) {
	var ports []int
	for range 5 {
		ports = append(ports, closedPort(), silentPort())
	}
	working.register(backend)
	broken.register(backend, ports...)
	sides := []*side{broken, working}
	for _, request := range [][3]string{
		{"discovery", "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
		{"openapi index", "/openapi/v3", jsonType},
		{"an object", core + "configmaps/one", jsonType},
		{"a list", "/api/v1/namespaces", jsonType},
	} {
		spent, latencies := map[*side]time.Duration{}, map[*side][]time.Duration{}
		for range rounds {
			slices.Reverse(sides)
			for _, s := range sides {
				cost, times := s.read(request[1], request[2])
				spent[s] += cost
				latencies[s] = append(latencies[s], times...)
			}
		}
		for _, s := range []*side{broken, working} {
			slices.Sort(latencies[s])
			n := len(latencies[s])
			fmt.Printf("%-14s %-16s %8d requests %8.4f ms of processor time each, p99 latency %v\n",
				request[0], s.name, n, spent[s].Seconds()*1000/float64(n), latencies[s][n*99/100])
		}
	}
	before := []time.Duration{processorTime(broken.pid), processorTime(working.pid)}
	<-time.After(time.Minute)
	for i, s := range []*side{broken, working} {
		fmt.Printf("idle           %-16s %v of processor time per minute\n", s.name, processorTime(s.pid)-before[i])
	}
}
