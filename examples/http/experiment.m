% A run from MATLAB, with nothing but webread and webwrite.
%
%     safebo serve runs.db          (in a terminal)
%     experiment                    (in MATLAB)
%
% Replace `measure` by your experiment. With a token: setenv('SAFEBO_RIG_TOKEN', '...').

url = 'http://127.0.0.1:8000/api/v1';
run = ['matlab-' char(datetime('now', 'Format', 'yyyyMMdd-HHmmss'))];

start = struct('kp', 2.0, 'kd', 0.3);
description = struct( ...
    'name', run, ...
    'parameters', struct('kp', struct('low', 0, 'high', 5, 'unit', 'V/rad'), ...
                         'kd', struct('low', 0, 'high', 1, 'unit', 'V s/rad')), ...
    'threshold', 0, ...                              % the objective must stay above it
    'noise', 0.01, ...
    'kernel', struct('lengthscale', 0.3), ...        % a fraction of each parameter's range
    'initial', struct('params', start, 'objective', measure(start)));
webwrite([url '/runs'], description, options(''));

for i = 1:10
    % The same key gets the same trial again: if the answer is lost on the way, call it again.
    key = sprintf('%s-ask-%d', run, i);
    asked = webwrite([url '/runs/' run '/ask'], struct(), options(key));
    while ~asked.ready && ~isempty(asked.trial)      % the run asks for an operator's approval
        disp('waiting for approval ...'); pause(2);
        asked = webwrite([url '/runs/' run '/ask'], struct(), options(key));
    end
    if isempty(asked.trial)                          % paused, stopped, or nothing left
        fprintf('%s: %s\n', asked.status, asked.reason);
        break
    end
    trial = asked.trial;
    try
        value = measure(trial.params);
    catch problem                                    % nothing is learned from it, and nothing follows close to it
        webwrite([url '/runs/' run '/abort'], struct('trial', trial.id, 'reason', problem.message), options(''));
        rethrow(problem)
    end
    told = webwrite([url '/runs/' run '/tell'], struct('trial', trial.id, 'objective', value), ...
                    options(sprintf('%s-tell-%d', run, i)));
    fprintf('%d: kp = %.4f, kd = %.4f -> %.4f (%s)\n', i, trial.params.kp, trial.params.kd, value, told.status);
end

best = webread([url '/runs/' run '/best'], options(''));
disp(best.params)

function value = measure(p)
    value = 1 - (p.kp - 3)^2 / 4 - 4 * (p.kd - 0.4)^2;
end

function o = options(key)
    o = weboptions('MediaType', 'application/json', 'ContentType', 'json', 'Timeout', 600);
    headers = {};
    token = getenv('SAFEBO_RIG_TOKEN');
    if ~isempty(token), headers = [headers; {'Authorization', ['Bearer ' token]}]; end
    if ~isempty(key), headers = [headers; {'Idempotency-Key', key}]; end
    if ~isempty(headers), o.HeaderFields = headers; end
end
