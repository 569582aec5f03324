// Command load writes built-in objects to an API server from many concurrent clients, and measures the processor time
// of the server. The writes renew Leases, create Events, ConfigMaps and Pods, and patch the status of a Pod.
//
//	load -kubeconfig FILE -pid PID [-clients 64] [-seconds 10]
//	load -kubeconfig FILE -pid PID -get PATH
//	    measures reads of a path
//	load -kubeconfig FILE -pid PID -get PATH -watches 1000
//	    measures the memory of watches
//	load -kubeconfig FILE -pid PID -beside FILE -beside-pid PID -backend PORT
//	    creates 100 APIServices on both servers, and compares the servers. 10 APIServices of the first server have
//	    unreachable or silent backends. Both servers must have the flag --allow-local-services=default/backend
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// workload is a kind of request to measure.
type workload struct {
	name string
	// prepare returns an object that each client needs before the measurement. A nil function means that no object is
	// needed.
	prepare func(client int) (path, body string)
	// request returns the n-th request of a client.
	request func(client, n int) (method, path, contentType, body string)
}

const core, jsonType = "/api/v1/namespaces/default/", "application/json"

func pod(name string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name +
		`","labels":{"app":"load"}},"spec":{"automountServiceAccountToken":false,` +
		`"containers":[{"name":"c","image":"registry.example/app:1",` +
		`"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},` +
		`"env":[{"name":"A","value":"b"}]}]}}`
}

// workloads returns all kinds of writes. The names of the created objects contain the parameter run.
func workloads(run string) []workload {
	id := func(prefix string, client, n int) string { return fmt.Sprintf("%s-%s-%d-%d", prefix, run, client, n) }
	create := func(path string, body func(client, n int) string) func(int, int) (string, string, string, string) {
		return func(client, n int) (string, string, string, string) { return "POST", path, jsonType, body(client, n) }
	}
	leases := "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	lease := func(client, n int) string {
		at := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + id("lease", client, 0) +
			`"},"spec":{"holderIdentity":"me","leaseDurationSeconds":40,"renewTime":"` + at + `","leaseTransitions":` +
			strconv.Itoa(n) + `}}`
	}
	return []workload{
		{"lease renewal", func(c int) (string, string) { return leases, lease(c, 0) },
			func(c, n int) (string, string, string, string) {
				return "PATCH", leases + "/" + id("lease", c, 0), "application/merge-patch+json", lease(c, n+1)
			}},
		{"event create", nil, create(core+"events", func(c, n int) string {
			return `{"apiVersion":"v1","kind":"Event","metadata":{"name":"` + id("event", c, n) +
				`"},"involvedObject":{"kind":"Pod","namespace":"default","name":"p"},` +
				`"reason":"Pulled","message":"the image is there","type":"Normal","count":1,` +
				`"source":{"component":"kubelet","host":"m"},` +
				`"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:00:00Z"}`
		})},
		{"configmap create", nil, create(core+"configmaps", func(c, n int) string {
			return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + id("map", c, n) +
				`"},"data":{"a":"b","c":"` + strings.Repeat("d", 500) + `"}}`
		})},
		{"pod create", nil, create(core+"pods", func(c, n int) string { return pod(id("pod", c, n)) })},
		{"pod status patch", func(c int) (string, string) { return core + "pods", pod(id("status", c, 0)) },
			func(c, n int) (string, string, string, string) {
				path := core + "pods/" + id("status", c, 0) + "/status"
				return "PATCH", path, "application/strategic-merge-patch+json",
					`{"status":{"phase":"Running","podIP":"10.1.1.1","conditions":[` +
						`{"type":"Ready","status":"True","message":"` + strconv.Itoa(n) + `"}]}}`
			}},
	}
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` of an administrator")
	pid := flag.Int("pid", 0, "PID of the server")
	clients := flag.Int("clients", 64, "number of concurrent clients")
	seconds := flag.Int("seconds", 10, "duration of the measurement of each kind of request in seconds")
	get := flag.String("get", "", "`path` to read (empty means that writes are measured)")
	watches := flag.Int("watches", 0, "number of watches of the path in -get (0 means that reads are measured)")
	beside := flag.String("beside", "", "kubeconfig `file` of a second server to compare with (empty means none)")
	besidePID := flag.Int("beside-pid", 0, "PID of the second server")
	backend := flag.Int("backend", 0, "port on localhost at which the backend of the APIServices listens")
	flag.Parse()
	if *beside != "" {
		compare(newSide("10 broken", *kubeconfig, *pid), newSide("none broken", *beside, *besidePID), *backend)
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		log.Fatal(err)
	}
	send := func(method, path, contentType, body string) int {
		r, err := http.NewRequest(method, config.Host+path, bytes.NewReader([]byte(body)))
		if err != nil {
			log.Fatal(err)
		}
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Accept", jsonType)
		r.Header.Set("User-Agent", "load")
		resp, err := client.Do(r)
		if err != nil {
			log.Fatal(err)
		}
		defer resp.Body.Close()
		var out bytes.Buffer
		_, _ = out.ReadFrom(resp.Body)
		if resp.StatusCode >= 300 {
			log.Fatalf("%s %s: %s", method, path, out.Bytes())
		}
		return out.Len()
	}
	if *watches > 0 {
		watch(client, config.Host+*get, *watches, *pid)
		return
	}
	all := workloads(strconv.FormatInt(time.Now().Unix(), 36))
	if *get != "" {
		all = []workload{{"get", nil, func(int, int) (string, string, string, string) {
			return "GET", *get, jsonType, ""
		}}}
	}
	for _, w := range all {
		if w.prepare != nil {
			for c := range *clients {
				path, body := w.prepare(c)
				send("POST", path, jsonType, body)
			}
		}
		var done atomic.Int64
		var group sync.WaitGroup
		ctx, stop := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second)
		start, before := time.Now(), processorTime(*pid)
		for c := range *clients {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					send(w.request(c, n))
					done.Add(1)
				}
			})
		}
		group.Wait()
		stop()
		n := float64(done.Load())
		fmt.Printf("%-18s %8.0f requests/s %8.3f ms of the server's processor time each\n", w.name,
			n/time.Since(start).Seconds(),
			(processorTime(*pid)-before).Seconds()*1000/n)
	}
}

// processorTime returns the user and system time of a process, with a resolution of 10 ms.
func processorTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		log.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			log.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// watch opens n watches, waits for the first event of each, and prints the increase of the server's memory after 10
// seconds.
func watch(client *http.Client, url string, n, pid int) {
	before := memory(pid)
	var open sync.WaitGroup
	for range n {
		resp, err := client.Get(url)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := resp.Body.Read(make([]byte, 1<<10)); err != nil {
			log.Fatal(err)
		}
		open.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
	}
	<-time.After(10 * time.Second)
	fmt.Printf("%d watches use %d KiB of additional anonymous memory\n", n, memory(pid)-before)
}

// memory returns the anonymous memory of a process in KiB.
func memory(pid int) (kib int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		log.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssAnon:")
	_, _ = fmt.Sscanf(after, "%d", &kib)
	return kib
}
