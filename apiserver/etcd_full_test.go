package apiserver_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// etcdClient returns a client of etcd.
func etcdClient(t *testing.T, c clientv3.Config) *clientv3.Client {
	t.Helper()
	e, err := clientv3.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// TestEtcdFull checks a server whose etcd is full. Writes get 503 with Retry-After. Reads, watches and deletions
// succeed, and the server stays ready for them. When etcd has space again, writes succeed without a restart.
func TestEtcdFull(t *testing.T) {
	e := storagetest.StartEtcd(t, "--quota-backend-bytes=8388608")
	s, _ := onEtcd(t, e)
	c := &caller{t, s, client(t, s)}
	const path = "/api/v1/namespaces/default/configmaps"
	write := func(name string) (status int, retry, text string) {
		resp, text := c.do("POST", path,
			`{"metadata":{"name":"`+name+`"},"data":{"a":"`+strings.Repeat("x", 900<<10)+`"}}`)
		return resp.StatusCode, resp.Header.Get("Retry-After"), text
	}
	stream, err := c.client.Get(s.URL() + path + "?watch=1&resourceVersion=0")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	stored, status, retry, text := 0, 201, "", ""
	for ; status == 201; stored++ {
		status, retry, text = write(fmt.Sprint("m", stored))
	}
	stored--
	if status != 503 || retry != "1" || !strings.Contains(text, "storage is nearly full: creations") {
		t.Fatalf("create in a full etcd: got %d %q %.300s", status, retry, text)
	}
	c.want(503, "PATCH", path+"/m0", `{"metadata":{"labels":{"a":"b"}}}`)
	c.want(200, "GET", path+"/m0", "")
	if text := c.want(200, "GET", path, ""); strings.Count(text, `"uid"`) != stored {
		t.Errorf("list in a full etcd: got %d objects, want %d", strings.Count(text, `"uid"`), stored)
	}
	c.want(200, "GET", "/readyz", "")
	c.want(200, "GET", "/livez", "")
	for i := range stored {
		c.want(200, "DELETE", fmt.Sprint(path, "/m", i), "")
	}
	for events, n := bufio.NewReader(stream.Body), 0; n < 2*stored; n++ {
		line, err := events.ReadString('\n')
		want := "ADDED"
		if n >= stored {
			want = "DELETED"
		}
		if err != nil || !strings.HasPrefix(line, `{"type":"`+want+`"`) ||
			!strings.Contains(line, fmt.Sprintf(`"name":"m%d"`, n%stored)) {
			t.Fatalf("event %d: %v, %.100s", n, err, line)
		}
	}
	admin := etcdClient(t, clientv3.Config{Endpoints: []string{e.URL}})
	now, err := admin.Get(t.Context(), "a")
	if err == nil {
		_, err = admin.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = admin.Defragment(t.Context(), e.URL)
	}
	if err == nil {
		_, err = admin.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if status, _, text := write("m0"); status != 201 {
		t.Errorf("create after the alarm is disarmed: got %d %.300s", status, text)
	}
}

// TestEtcdWithoutPermissions checks that /readyz/storage returns etcd's reason while the server has no permissions in
// etcd, and that the server recovers without a restart.
func TestEtcdWithoutPermissions(t *testing.T) {
	e := storagetest.StartEtcd(t)
	s, _ := onEtcd(t, e)
	c := &caller{t, s, client(t, s)}
	admin := etcdClient(t, clientv3.Config{Endpoints: []string{e.URL}})
	_, err := admin.UserAdd(t.Context(), "root", "password")
	if err == nil {
		_, err = admin.UserGrantRole(t.Context(), "root", "root")
	}
	if err == nil {
		_, err = admin.AuthEnable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if text := c.want(500, "GET", "/readyz/storage", ""); !strings.Contains(text, "user name is empty") {
		t.Errorf("without permissions: got %q", text)
	}
	root := etcdClient(t, clientv3.Config{Endpoints: []string{e.URL}, Username: "root", Password: "password"})
	if _, err := root.AuthDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.want(200, "GET", "/readyz", "")
}
