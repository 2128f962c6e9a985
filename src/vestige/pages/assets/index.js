(function () {
  var table = document.getElementById('runs');
  var body = table.tBodies[0];
  var field = document.getElementById('filter');
  var shown = document.getElementById('shown');
  var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
  var numeric = { 3: 1, 4: 1, 5: 1, 6: 1, 8: 1, 10: 1 };
  var column = 9, down = true;
  var keys = function (row) { return row.keys || (row.keys = JSON.parse(row.dataset.keys)); };

  var filter = function () {
    var words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    var count = 0;
    Array.prototype.forEach.call(body.rows, function (row) {
      if (words.length && !row.words) row.words = (row.textContent + ' ' + keys(row).join(' ')).toLowerCase();
      var fits = words.every(function (word) { return row.words.indexOf(word) >= 0; });
      row.hidden = !fits;
      if (fits) count += 1;
    });
    shown.textContent = words.length ? count + ' of ' + body.rows.length : '';
    document.getElementById('none').hidden = count > 0 || !body.rows.length;
  };

  var sort = function () {
    var place = column, sign = down ? -1 : 1;
    var rows = Array.prototype.slice.call(body.rows);
    rows.sort(function (a, b) {
      var x = keys(a)[place], y = keys(b)[place];
      if (numeric[place]) return sign * (x - y);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    var all = document.createDocumentFragment();
    rows.forEach(function (row) { all.appendChild(row); });
    body.appendChild(all);
    heads.forEach(function (head, i) {
      if (i === place) head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
  };

  heads.forEach(function (head, i) {
    head.querySelector('button').addEventListener('click', function () {
      down = i === column ? !down : !!numeric[i] || i === 9;
      column = i;
      sort();
    });
  });
  field.addEventListener('input', filter);
  document.getElementById('search').addEventListener('submit', function (event) { event.preventDefault(); });
  filter();

  // Served by "vestige view": ask for the rows again while runs progress.
  if (!document.body.dataset.live) return;
  var mark = '';
  var ask = function () {
    fetch('rows', { cache: 'no-store', headers: mark ? { 'If-None-Match': mark } : {} }).then(function (answer) {
      if (answer.status !== 200) return null;
      mark = answer.headers.get('ETag') || '';
      return answer.text();
    }).then(function (text) {
      if (text === null) return;
      var holder = document.createElement('template');
      holder.innerHTML = '<table><tbody>' + text + '</tbody></table>';
      body.replaceChildren.apply(body, holder.content.querySelectorAll('tr'));
      document.getElementById('runs-h').textContent = body.rows.length + (body.rows.length === 1 ? ' run' : ' runs');
      if (!(column === 9 && down)) sort();
      filter();
    }).catch(function () { shown.textContent = 'not connected'; });
  };
  setInterval(ask, 2000);
})();
