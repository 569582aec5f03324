// Command firstpod measures the time from the start of trellis serve and trellis-cluster up until the Pod of a
// Deployment responds to a request. It then measures the memory of all parts. It must run as root, so that the Pod has
// an address.
//
//	firstpod -trellis FILE -trellis-cluster FILE [-port 16443]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if filepath.Base(os.Args[0]) == "web" { // in the Pod
		log.Fatal(http.ListenAndServe(":8080",
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })))
	}
	server := flag.String("trellis", "", "`path` of trellis")
	cluster := flag.String("trellis-cluster", "", "`path` of trellis-cluster")
	port := flag.String("port", "16443", "port of the server")
	flag.Parse()
	dir, err := os.MkdirTemp("", "firstpod")
	check(err)
	self, err := os.Executable()
	check(err)
	web := filepath.Join(dir, "web")
	check(os.Symlink(self, web))

	began := time.Now()
	report := func(event string) { fmt.Printf("%-8s %.2f s\n", event, time.Since(began).Seconds()) }
	serve := start(dir, *server, "serve", "--data-dir", filepath.Join(dir, "data"), "--secure-port", *port)
	config := filepath.Join(dir, "data", "admin.kubeconfig")
	client := connect(config)
	report("ready")
	up := start(dir, *cluster, "up", "--kubeconfig", config, "--root-dir", filepath.Join(dir, "nodes"), "--image",
		"example.com/web="+web)
	ctx := context.Background()
	_, err = client.AppsV1().Deployments("default").Create(ctx, deployment(), metav1.CreateOptions{})
	check(err)
	waitForResponse(waitForPod(ctx, client))
	report("response")

	<-time.After(20 * time.Second) // until all parts are idle
	fmt.Printf("anonymous memory when idle: trellis serve %.0f MiB, "+
		"trellis-cluster up with its child processes %.0f MiB\n", memory(serve), memory(up))
	check(client.AppsV1().Deployments("default").Delete(ctx, "web", metav1.DeleteOptions{}))
	<-time.After(5 * time.Second) // until its Pod is deleted
	for _, c := range []*exec.Cmd{up, serve} {
		check(c.Process.Signal(os.Interrupt))
		_ = c.Wait() // the exit code does not matter
	}
	check(os.RemoveAll(dir))
}

// start starts a program with its output in a log file in dir.
func start(dir, program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	out, err := os.Create(filepath.Join(dir, filepath.Base(program)+".log"))
	check(err)
	c.Stdout, c.Stderr = out, out
	check(c.Start())
	return c
}

// connect waits until the server is ready, and returns a client.
func connect(kubeconfig string) kubernetes.Interface {
	for ; ; <-time.After(5 * time.Millisecond) {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			continue // the server has not written the file yet
		}
		client := kubernetes.NewForConfigOrDie(config)
		if _, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background()); err == nil {
			return client
		}
	}
}

func deployment() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}}},
			},
		},
	}
}

// waitForPod waits until the first Pod is running, and returns its address.
func waitForPod(ctx context.Context, client kubernetes.Interface) string {
	w, err := client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	check(err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			return p.Status.PodIP
		}
	}
	log.Fatal("the watch ended before a Pod was running")
	return ""
}

// waitForResponse waits until an HTTP server on port 8080 of an address responds.
func waitForResponse(ip string) {
	for {
		resp, err := http.Get("http://" + net.JoinHostPort(ip, "8080"))
		if err == nil {
			resp.Body.Close()
			return
		}
	}
}

// memory returns the anonymous memory of a process and its descendants in MiB. It does not include containers, which
// are not descendants.
func memory(c *exec.Cmd) (sum float64) {
	for pids := []string{fmt.Sprint(c.Process.Pid)}; len(pids) > 0; pids = pids[1:] {
		status, err := os.ReadFile("/proc/" + pids[0] + "/status")
		check(err)
		for line := range strings.Lines(string(status)) {
			var kib float64
			if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kib); n == 1 {
				sum += kib / 1024
			}
		}
		tasks, err := filepath.Glob("/proc/" + pids[0] + "/task/*/children")
		check(err)
		for _, t := range tasks {
			children, err := os.ReadFile(t)
			check(err)
			pids = append(pids, strings.Fields(string(children))...)
		}
	}
	return sum
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
