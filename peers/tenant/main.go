// Command tenant measures how well an API server protects one tenant from another. A client creates ConfigMaps at a steady rate in
// its own namespace while a second client, with another identity, sends the most expensive requests known. The same attacks run
// against Trellis and, for comparison, against kube-apiserver with etcd. Both servers run with their default flags, except for
// addresses, folders and static tokens.
//
//	taskset -c 1 go run ./tenant -trellis ../bin/trellis [-peers ../bin/peers] [-seconds 15] [-only NAME,NAME]
//
// The program starts the servers on processor 0 and itself has to run on another one.
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
	trellis := flag.String("trellis", "../bin/trellis", "the program trellis")
	peers := flag.String("peers", "", "folder of kube-apiserver and etcd (default: Trellis is measured alone)")
	seconds := flag.Int("seconds", 15, "duration of each attack")
	only := flag.String("only", "", "comma-separated names of attacks (default: all)")
	role, host := flag.String("attack", "", "name of the attack to send; internal, set by the program itself"), flag.String("host", "", "address to attack; internal")
	flag.Parse()
	if *role != "" {
		send(*role, *host)
		return
	}
	if runtime.NumCPU() != 1 {
		log.Fatal("tenant needs a processor of its own: start it with `taskset -c 1`")
	}
	for _, s := range servers(*trellis, *peers) {
		for _, a := range chosen(*only) {
			fmt.Println(measure(s, a, time.Duration(*seconds)*time.Second))
		}
	}
}

// chosen returns the attacks to run, in the order of their list. The first one is none, for comparison.
func chosen(only string) (names []string) {
	names = append(names, "none")
	for _, a := range attacks() {
		if only == "" || strings.Contains(","+only+",", ","+a.name+",") {
			names = append(names, a.name)
		}
	}
	return names
}

// measure runs one attack against a new server and returns the line to print. Each attack gets a new server, so that no attack
// suffers from the one before.
func measure(s server, attack string, d time.Duration) string {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s.start()
	defer s.stop()
	prepare(s.host)
	var attacker *exec.Cmd
	if attack != "none" {
		attacker = startAttacker(attack, s.host)
		<-time.After(2 * time.Second) // the attack is under way
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
	return fmt.Sprintf("%-15s %-18s creates %4d failed %3d p50 %8.1f ms p99 %8.1f ms max %8.1f ms; server %4.0f %% of a processor, peak %5d MiB, %s; attack %s",
		s.name, attack, r.done, r.failed, r.quantile(0.5), r.quantile(0.99), r.quantile(1), 100*cost.Seconds()/d.Seconds(), <-peak, s.state(), counts)
}

// startAttacker starts this program again as the sender of an attack, with the lowest priority: the measured client shares the
// processor with it, and its own latency is not what is measured.
func startAttacker(attack, host string) *exec.Cmd {
	self, err := os.Executable()
	check(err)
	cmd := exec.Command("nice", "-n", "19", self, "-attack", attack, "-host", host)
	cmd.Stderr = os.Stderr
	cmd.Stdout = &strings.Builder{}
	check(cmd.Start())
	return cmd
}

// stopAttacker ends the attack and returns its count of answers by status code.
func stopAttacker(cmd *exec.Cmd) string {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	killer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer killer.Stop()
	_ = cmd.Wait()
	return strings.TrimSpace(cmd.Stdout.(*strings.Builder).String())
}

// send runs one attack until SIGTERM, and prints its count of answers.
func send(name, host string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	for _, a := range attacks() {
		if a.name == name {
			fmt.Println(a.run(ctx, host))
			return
		}
	}
	log.Fatalf("no attack has the name %q", name)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
