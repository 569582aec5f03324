// Command tenant measures how well an API server protects one tenant from another. A client creates ConfigMaps at a
// steady rate in its own namespace. At the same time a second client, with another identity, sends the most expensive
// requests that are known. The same attacks run against Trellis and, for comparison, against kube-apiserver with etcd.
// Both servers run with their default flags, except for addresses, folders and static tokens.
//
//	taskset -c 1 go run ./tenant -trellis ../bin/trellis [-peers ../bin/peers] [-seconds 15] [-only NAME,NAME]
//
// The program starts the servers on processor 0. It must itself run on another processor.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	trellis := flag.String("trellis", "../bin/trellis", "`path` of trellis")
	peers := flag.String("peers", "", "`folder` of kube-apiserver and etcd (empty means that only Trellis is measured)")
	seconds := flag.Int("seconds", 15, "duration of each attack")
	only := flag.String("only", "", "comma-separated `names` of attacks (empty means all)")
	role := flag.String("attack", "",
		"name of the attack to send. The program sets this flag in the process that it starts for an attack")
	host := flag.String("host", "", "address to attack. The program sets this flag like -attack")
	flag.Parse()
	if *role != "" {
		send(*role, *host)
		return
	}
	if runtime.NumCPU() != 1 {
		log.Fatal("tenant must run on one processor: start it with `taskset -c 1`")
	}
	for _, s := range servers(*trellis, *peers) {
		for _, a := range chosen(*only) {
			fmt.Println(measure(s, a, time.Duration(*seconds)*time.Second))
		}
	}
}

// chosen returns the names of the attacks to run. The first name is always "none", which means a measurement without
// an attack.
func chosen(only string) (names []string) {
	names = append(names, "none")
	for _, a := range attacks() {
		if only == "" || strings.Contains(","+only+",", ","+a.name+",") {
			names = append(names, a.name)
		}
	}
	return names
}

// measure runs one attack against a new server and returns the line to print. An earlier attack on the same server
// would affect the result.
func measure(s server, attack string, d time.Duration) string {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s.start()
	defer s.stop()
	prepare(s.host)
	var attacker *exec.Cmd
	if attack != "none" {
		attacker = startAttacker(attack, s.host)
		<-time.After(2 * time.Second) // until the attack has started
	}
	peak := s.followMemory(ctx)
	before := s.processorTime()
	r := create(ctx, s.host, d)
	cost := s.processorTime() - before
	counts := ""
	if attacker != nil {
		counts = stopAttacker(attacker)
	}
	stop()
	return fmt.Sprintf("%-15s %-18s creates %4d failed %3d p50 %8.1f ms p99 %8.1f ms max %8.1f ms; server %4.0f %% "+
		"of a processor, peak %5d MiB, %s; attack %s",
		s.name, attack, r.done, r.failed, r.quantile(0.5), r.quantile(0.99), r.quantile(1),
		100*cost.Seconds()/d.Seconds(), <-peak, s.state(), counts)
}

// startAttacker starts this program as the sender of an attack. It has the lowest priority, because the measured client
// shares the processor with it and must not be delayed.
func startAttacker(attack, host string) *exec.Cmd {
	self, err := os.Executable()
	check(err)
	cmd := exec.Command("nice", "-n", "19", self, "-attack", attack, "-host", host)
	cmd.Stderr = os.Stderr
	cmd.Stdout = &strings.Builder{}
	check(cmd.Start())
	return cmd
}

// stopAttacker stops the attack and returns the number of responses for each status.
func stopAttacker(cmd *exec.Cmd) string {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	killer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer killer.Stop()
	_ = cmd.Wait()
	return strings.TrimSpace(cmd.Stdout.(*strings.Builder).String())
}

// send runs one attack until SIGTERM, and prints the number of responses for each status.
func send(name, host string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	for _, a := range attacks() {
		if a.name == name {
			fmt.Println(a.run(ctx, host))
			return
		}
	}
	log.Fatalf("unknown attack %q", name)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
